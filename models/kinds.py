"""What config.json alone says of a checkpoint, without torch: can a request go with it, before weights are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .families import match
from .sources import MAR_FILE, local, read_json

# Models of pictures that run through transformers, by their model_type: module and function that are given the
# `Source`, before weights are read, and give back what makes the `Parts` to run and the `Imaging` of the model.
PICTURES = {"janus": "pardec.models.vision.janus:prepare"}


@dataclass(frozen=True, slots=True)
class Kind:
    """What can be told of a model before it is loaded."""

    name: str
    family: Literal["masked", "ar", "continuous"]  # whose methods decode it
    draws: Literal["class", "text", "either"] | None = None  # pictures of what ("either": not said); None: text
    classes: int | None = None  # of pictures, where they are said
    positions: int | None = None  # the length the checkpoint was made for
    vocabulary: int | None = None  # tokens of a model of text, where they are said
    reader: Path | None = None  # the folder of what reads captions as they are, where that lies beside the weights
    block: int | None = None  # block-causal: the width that all blocks have


def kind_of(name: str | os.PathLike[str]) -> Kind | None:
    """Of an embedded model or a folder; None of what only the hub or the weights can tell.

    Raises UnknownModelError for a name that nothing can have, ArgumentError for a folder that is no checkpoint,
    ModelError for a config.json that cannot be read.
    """
    source = local(name)
    if source is None or source.file is not None or (source.folder / MAR_FILE).is_file():
        return None
    return kind(source.name, read_json(source.folder / "config.json", required=True), source.folder)


def kind(name: str, config: dict[str, Any], folder: Path | None = None) -> Kind:
    """Of the model called `name` with this config.json, and the folder it lies in."""
    if config.get("model_type") == "mar":
        return Kind(name, "continuous", "class", classes=_whole(config, "class_num"))
    if config.get("model_type") in PICTURES:
        return Kind(name, "ar", "text")
    spec = match(config)
    if spec is None:
        inner = config.get("text_config")
        flat = {**config, **inner} if isinstance(inner, Mapping) else config
        return Kind(name, "ar", positions=_whole(flat, "max_position_embeddings"))
    if spec.imaging:
        drawn: dict[object, Literal["class", "text"]] = {"c2i": "class", "t2i": "text"}
        beside = None if folder is None or config.get("clean_captions") else folder / "text_encoder"
        return Kind(name, "ar", drawn.get(config.get("gpt_type"), "either"), reader=beside)
    try:
        positions = spec.positions(config)
    except (KeyError, TypeError, ValueError):  # what is wrong with the config is said when it is loaded
        positions = None
    block = (_whole(config, "block_size") or _whole(config, "block_length") or spec.block) if spec.block else None
    family: Literal["masked", "ar"] = "ar" if spec.attention == "causal" else "masked"
    vocabulary = max(filter(None, (_whole(config, key) for key in ("vocab_size", "embedding_size"))), default=None)
    length = positions if isinstance(positions, int) else None
    return Kind(name, family, positions=length, vocabulary=vocabulary, block=block)


def _whole(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
