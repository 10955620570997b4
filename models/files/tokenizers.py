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

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **_arguments(settings))
    return _add_template(tokenizer, folder, settings)


def _from_vocabulary(folder: Path, settings: dict[str, Any]) -> Any | None:
    """The tokenizer of vocab.json and merges.txt."""
    if not ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()):
        return None
    from transformers import AddedToken, Qwen2Tokenizer

    vocabulary = parse((folder / "vocab.json").read_bytes())
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    added = settings.get("added_tokens_decoder") or {}
    keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    tokens = {int(number): AddedToken(**{key: entry[key] for key in keys}) for number, entry in added.items()}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges, added_tokens_decoder=tokens, **_arguments(settings))
    wrong = [
        entry["content"]
        for key, entry in added.items()
        if tokenizer.convert_tokens_to_ids(entry["content"]) != int(key)
    ]
    if wrong:
        raise ValueError(f"added tokens have other ids than published: {', '.join(wrong[:10])}")
    return _add_template(tokenizer, folder, settings)


def _add_template(tokenizer: Any, folder: Path, settings: dict[str, Any]) -> Any:
    template = folder / "chat_template.jinja"
    if template.is_file():
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    elif settings.get("chat_template"):
        tokenizer.chat_template = settings["chat_template"]
    return tokenizer


def _arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that tokenizer classes take."""
    arguments = {}
    for key in (*_SPECIAL, "additional_special_tokens"):
        value = settings.get(key)
        if value:
            arguments[key] = value["content"] if isinstance(value, dict) else value
    for key in ("model_max_length", "clean_up_tokenization_spaces", "padding_side"):
        if settings.get(key) is not None:
            arguments[key] = settings[key]
    return arguments


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        settings = parse(file.read_bytes())
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}
