"""Loads tokenizers of checkpoints through transformers, without remote code."""

from __future__ import annotations

import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ModelError, damage, one_line
from ..hf.hf_logging import silence
from .sources import read_json

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_VOCABULARIES = r"tokenizer(\.[\d.]+)?\.json|tekken\.json|(tokenizer|tiktoken)\.model.*"  # read for any class
# Further files that a tokenizer reads, of which none is needed.
_BESIDE = ("merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_WORDS = ("Hello world 2024", "def f(x): return x", "Größe")
_UNSPLIT = ("PythonBackend", "TokenizersBackend")  # classes that read from tokenizer.json how text is split
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "sep_token", "cls_token")


def load_tokenizer(folder: Path) -> Any | None:
    """The tokenizer of a checkpoint folder, None if it has none. Raises ModelError if the one it has cannot be used."""
    tokenizer = _load(folder)
    most = getattr(tokenizer, "model_max_length", None)
    if most is not None and not isinstance(most, int | float):
        raise ModelError(f"{folder}/tokenizer_config.json: model_max_length is {most!r}, and a number is needed")
    _end_dropout(tokenizer, folder)
    if tokenizer is not None:  # pardec refuses rows longer than the context itself, with a hint
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _end_dropout(tokenizer: Any, folder: Path) -> None:
    """Turns off the dropout of merges, with a warning: it is for training, and stays on in a saved tokenizer.

    See `findings/tokenizers_dropout_of_training_stays_on.sh`. A caller who wants it sets it on the tokenizer.
    """
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if dropout := getattr(model, "dropout", None):
        model.dropout = None
        warnings.warn(
            f"{folder}/tokenizer.json has dropout={dropout:g}, which cuts a text another way each time: it is off",
            stacklevel=3,
        )


def _load(folder: Path) -> Any | None:
    for name in (*_FILES, *_BESIDE):
        if (error := damage(folder / name)) is not None:
            raise error
    if not any((folder / name).is_file() for name in _FILES):
        return None
    from transformers import AutoTokenizer

    reasons = []
    settings = read_json(folder / "tokenizer_config.json")
    if "auto_map" not in settings:
        try:
            with silence():
                tokenizer = AutoTokenizer.from_pretrained(
                    folder, trust_remote_code=False, local_files_only=True, config=_named(folder, settings)
                )
            require_vocabulary(folder, tokenizer)
            return tokenizer
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
    hint = "add a tokenizer.json (fast tokenizer), or vocab.json with merges.txt, to the folder"
    if _pieces(folder) is not None and find_spec("sentencepiece") is None:
        hint = "to read its .model file, pip install sentencepiece protobuf; or add a tokenizer.json to the folder"
    raise ModelError(f"the tokenizer in {folder} cannot be used: {'; '.join(reasons)}", hint)


def require_vocabulary(folder: Path, tokenizer: Any) -> None:
    """Raises ValueError for a tokenizer that transformers made without the folder's vocabulary.

    Where there is no file with one, its class makes up a few tokens. See
    `findings/transformers_makes_up_the_vocabulary_of_a_missing_file.sh`.
    """
    files = [name for name in getattr(tokenizer, "vocab_files_names", {}).values() if name]
    known = re.compile("|".join([*map(re.escape, files), _VOCABULARIES]))
    if files and not any(known.fullmatch(entry.name) for entry in folder.iterdir()):
        raise ValueError(f"there is no {' or '.join(files)}, which the class {type(tokenizer).__name__} reads")
    _require_pieces(folder, tokenizer)


def _pieces(folder: Path) -> Path | None:
    """The file of sentencepiece or tiktoken that a tokenizer is converted from, where there is no tokenizer.json."""
    return None if (folder / "tokenizer.json").is_file() else min(folder.glob("*.model"), default=None)


def _require_pieces(folder: Path, tokenizer: Any) -> None:
    """Raises ValueError for a tokenizer that splits words otherwise than the folder's sentencepiece model.

    See `findings/transformers_reads_sentencepiece_without_its_first_space.sh`.
    """
    if (file := _pieces(folder)) is None or find_spec("sentencepiece") is None:
        return
    from sentencepiece import SentencePieceProcessor

    try:
        model = SentencePieceProcessor(model_file=str(file))
    except RuntimeError:  # it is one of tiktoken
        return
    for text in _WORDS:
        ids, right = tokenizer(text, add_special_tokens=False)["input_ids"], model.encode(text)
        if ids != right:
            raise ValueError(f"{text!r} has the ids {ids}, and by {file.name} {right}")


def _named(folder: Path, settings: dict[str, Any]) -> Any | None:
    """The model's type and name in config.json, enough for AutoTokenizer if tokenizer_config.json names a class.

    None, so that it reads the file itself, in other cases. Left to itself it makes the config of the model, whose class
    imports far more than a tokenizer needs (`findings/transformers_config_imports_the_compiler.sh`).
    """
    if not settings.get("tokenizer_class"):
        return None
    from transformers import PreTrainedConfig

    config = read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
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
    """The tokenizer of vocab.json and merges.txt; its class says how text is split, which the files do not.

    Remote code is taken for Qwen2's, as Dream's is. Raises ValueError for a class that reads it from tokenizer.json.
    """
    if not ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()):
        return None
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    named = "Qwen2Tokenizer" if "auto_map" in settings else str(settings.get("tokenizer_class"))
    known = tokenizer_class_from_name(named)
    if known is None or known.__name__ in _UNSPLIT:
        raise ValueError(f"neither these files nor tokenizer_class={named} say how text is split")
    tokenizer = _read(known, folder, settings)
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

    Special tokens may be published as objects without a type, which the class does not take. Raises ValueError for a
    class that has not the folder's vocabulary.
    """
    bare = {key: value for key in _SPECIAL if isinstance(value := settings.get(key), dict) and "__type" not in value}
    with silence():
        tokenizer = kind.from_pretrained(
            folder,
            trust_remote_code=False,
            local_files_only=True,
            **{key: value["content"] for key, value in bare.items()},
        )
    require_vocabulary(folder, tokenizer)
    return tokenizer
