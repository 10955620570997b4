"""Arguments and sampling defaults of image models whose weight files hold only tensors, from JSON files.

The files are written by people, with the names of the authors' arguments: a key that is not known is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..files.sources import read_json
from .base import Config, ConfigKeys

# Keys that libraries write: no reference reads them.
BOOKKEEPING = frozenset(
    (
        *("model_type", "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "_name_or_path"),
        *("_class_name", "_diffusers_version", "library_name", "license", "tags"),
    )
)
SAMPLING = ConfigKeys(
    frozenset(("sampler", "temperature", "top_k", "top_p", "cfg", "cfg_interval")),
    ignored=BOOKKEEPING | {"_from_model_config", "bos_token_id", "eos_token_id", "pad_token_id"},
)


def stated(folder: Path, stem: str, keys: ConfigKeys) -> Config:
    """The arguments that config.json, args.json and `<stem>.args.json` in a folder state.

    Raises ModelError, with the file, for a key that is refused or not known, and where two files contradict.
    """
    config: Config = {}
    for name in dict.fromkeys(("config.json", "args.json", f"{stem}.args.json" if stem else "args.json")):
        more = _read(folder / name, keys)
        for key in more.keys() & config.keys():
            if more[key] != config[key]:
                raise ModelError(
                    f"{folder / name}: {key} is {more[key]!r}, and {config[key]!r} in another file",
                    "leave one of them out",
                )
        config |= more
    return config


def agree(folder: Path, config: Config, read_off: Mapping[str, Any]) -> None:
    """Raises ModelError, which names the argument, if an argument contradicts the tensors."""
    for name, value in read_off.items():
        if name in config and config[name] != value:
            raise ModelError(
                f"{folder}: {name} is {config[name]!r} in the config, and {value!r} in the tensors",
                f"correct {name}, or leave it out of the config",
            )


def sampling(folder: Path, keys: ConfigKeys = SAMPLING) -> Config:
    """The sampling defaults in a folder's generation_config.json. Raises ModelError for an unknown key."""
    return _read(folder / "generation_config.json", keys)


def _read(file: Path, keys: ConfigKeys) -> Config:
    try:
        return keys.read(read_json(file))
    except ModelError as error:
        if str(file) in str(error):
            raise
        raise ModelError(f"{file}: {error}", error.hint) from error
