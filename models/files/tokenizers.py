"""Loads tokenizers of checkpoints through transformers, without remote code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ModelError, one_line
from ..hf.hf_logging import silence
from .json_text import parse

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "sep_token", "cls_token")


def load_tokenizer(folder: Path) -> Any | None:
    """The tokenizer of a checkpoint folder, None if it has none. Raises ModelError if the one it has cannot be used."""
    tokenizer = _load(folder)
    most = getattr(tokenizer, "model_max_length", None)
    if most is not None and not isinstance(most, int | float):
        raise ModelError(f"{folder}/tokenizer_config.json: model_max_length is {most!r}, and a number is needed")
    return tokenizer


def _load(folder: Path) -> Any | None:
    if not any((folder / name).is_file() for name in _FILES):
        return None
    from transformers import AutoTokenizer

    reasons = []
    settings = _settings(folder)
    if "auto_map" not in settings:
        try:
            with silence():
                return AutoTokenizer.from_pretrained(
                    folder, trust_remote_code=False, local_files_only=True, config=_named(folder, settings)
                )
        except Exception as error:  # any of the tokenizer classes may fail in its own way
            reasons.append(f"AutoTokenizer: {one_line(error)}")
    else:
        reasons.append("its own class is remote code, which is not run")
    for files, attempt in (("tokenizer.json", _from_json), ("vocab.json and merges.txt", _from_vocabulary)):
        try:
            tokenizer = attempt(folder, settings)
        except Exception as error:
            reasons.append(f"{files}: {one_line(error)}")
        else:
            if tokenizer is not None:
                return tokenizer
    raise ModelError(
        f"the tokenizer in {folder} cannot be used: {'; '.join(reasons)}",
        "add a tokenizer.json (fast tokenizer), or vocab.json with merges.txt, to the folder",
    )


def _named(folder: Path, settings: dict[str, Any]) -> Any | None:
    """What AutoTokenizer reads in config.json where tokenizer_config.json names the class: the model's type and name.

    None, so that it reads the file itself, in other cases. Left to itself it makes the config of the model, whose class
    imports far more than a tokenizer needs (`findings/transformers_config_imports_the_compiler.sh`).
    """
    file = folder / "config.json"
    if not settings.get("tokenizer_class") or not file.is_file():
        return None
    from transformers import PreTrainedConfig

    config = parse(file.read_bytes())
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        return None
    named = PreTrainedConfig(name_or_path=str(folder))
    named.model_type = config["model_type"]
    if "model_name" in config:
        named.model_name = config["model_name"]
    return named


def _from_json(folder: Path, settings: dict[str, Any]) -> Any | None:
    """The tokenizer of tokenizer.json."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    return _read(PreTrainedTokenizerFast, folder, settings)


def _from_vocabulary(folder: Path, settings: dict[str, Any]) -> Any | None:
    """The tokenizer of vocab.json and merges.txt."""
    if not ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()):
        return None
    from transformers import Qwen2Tokenizer

    tokenizer = _read(Qwen2Tokenizer, folder, settings)
    added = settings.get("added_tokens_decoder") or {}
    wrong = [
        entry["content"]
        for key, entry in added.items()
        if tokenizer.convert_tokens_to_ids(entry["content"]) != int(key)
    ]
    if wrong:
        raise ValueError(f"added tokens have other ids than published: {', '.join(wrong[:10])}")
    return tokenizer


def _read(kind: Any, folder: Path, settings: dict[str, Any]) -> Any:
    """The folder's tokenizer as this class of transformers reads it, whatever class the folder names.

    Special tokens may be published as objects without a type, which the class does not take.
    """
    bare = {key: value for key in _SPECIAL if isinstance(value := settings.get(key), dict) and "__type" not in value}
    with silence():
        return kind.from_pretrained(
            folder,
            trust_remote_code=False,
            local_files_only=True,
            **{key: value["content"] for key, value in bare.items()},
        )


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        settings = parse(file.read_bytes())
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}
