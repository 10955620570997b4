"""Facts about a checkpoint from config.json alone, without torch, to check requests before loading."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ..families import FamilySpec, match
from ..families.base import BLOCK_KEYS
from ..files.sources import MAR_FILE, Source, local, read_json

# Image models that run through transformers, by model_type: "module:function". Before weights are read the function is
# called with the `Source`; it returns one that makes the `Parts` to run and the `CodeImaging` of the model.
IMAGE_MODELS = {"janus": "pardec.models.images.janus:prepare"}
NEXTSTEP = ("nextstep", "stepx_llama")  # model_type of NextStep-1, and of the code that it is run by
NO_LANGUAGE_MODELS = ("mar", "var", "infinity", *NEXTSTEP)  # by model_type: their tokens are vectors, or maps of ids


@dataclass(frozen=True, slots=True)
class Kind:
    """Facts about a model that are known before it is loaded."""

    name: str
    family: Literal["masked", "ar", "continuous", "scales"]  # the family of samplers that decode it
    draws: Literal["class", "text", "either"] | None = None  # conditions of images ("either": unknown); None: text
    classes: int | None = None  # number of classes of an image model, if stated
    positions: int | None = None  # the length the checkpoint was made for
    vocabulary: int | None = None  # vocabulary size of a text model, if the config has it
    reader: Path | None = None  # folder of the text encoder of captions, if it is part of the checkpoint
    block: int | None = None  # block-causal: the width of every block
    writes: bool = False  # an image model that can be loaded for its text as well


def kind_of(name: str | os.PathLike[str]) -> Kind | None:
    """The kind of an embedded model or a folder; None if only the hub or the weights can tell.

    Raises UnknownModelError for an impossible name, ArgumentError for a folder that is no checkpoint, ModelError for a
    config.json that cannot be read.
    """
    source = local(name)
    if source is None or source.file is not None or (source.folder / MAR_FILE).is_file():
        return None
    return kind(source.name, read_json(source.folder / "config.json", required=True), source.folder)


def kind(name: str, config: dict[str, Any], folder: Path | None = None) -> Kind:
    """The kind of the model `name` with this config.json, in `folder`."""
    if config.get("model_type") == "mar":
        return Kind(name, "continuous", "class", classes=_whole(config, "class_num"))
    if config.get("model_type") in NEXTSTEP:
        return Kind(name, "continuous", "text")
    if config.get("model_type") == "var":
        return Kind(name, "scales", "class", classes=_whole(config, "num_classes"))
    if config.get("model_type") == "infinity":
        return Kind(name, "scales", "text")
    if config.get("model_type") in IMAGE_MODELS:
        return Kind(name, "ar", "text")
    spec = match(config)
    if spec is None:
        inner = config.get("text_config")
        flat = {**config, **inner} if isinstance(inner, Mapping) else config
        return Kind(name, "ar", positions=_whole(flat, "max_position_embeddings"))
    if spec.imaging and spec.text:
        return Kind(name, "masked", spec.draws, positions=_positions(spec, config), writes=True)
    if spec.imaging:
        conditioning: dict[object, Literal["class", "text"]] = {"c2i": "class", "t2i": "text"}
        beside = None if folder is None or config.get("clean_captions") else folder / "text_encoder"
        draws = conditioning.get(config.get("gpt_type")) if spec.draws is None else spec.draws
        classes = _whole(config, "num_classes") or _whole(config, "class_num")
        return Kind(name, "ar", draws or "either", classes=classes, reader=beside)
    block = next(filter(None, (_whole(config, key) for key in BLOCK_KEYS)), spec.block) if spec.block else None
    family: Literal["masked", "ar"] = "ar" if spec.attention == "causal" else "masked"
    vocabulary = max(filter(None, (_whole(config, key) for key in ("vocab_size", "embedding_size"))), default=None)
    return Kind(name, family, positions=_positions(spec, config), vocabulary=vocabulary, block=block)


def own_family(config: Mapping[str, Any]) -> str:
    """The family of one of `NO_LANGUAGE_MODELS`."""
    return "nextstep" if config["model_type"] in NEXTSTEP else str(config["model_type"])


def sampling_defaults(source: Source, config: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate` that the authors of an image model use, as its `Imaging.defaults` has them.

    Raises ModelError for files that loading would refuse.
    """
    spec = match(config)
    own = spec.imaging if spec else f"pardec.models.families.{own_family(config)}"
    where = IMAGE_MODELS.get(str(config.get("model_type")), own)
    defaults: dict[str, Any] = import_module(where.partition(":")[0]).defaults(source, config)
    return defaults


def _positions(spec: FamilySpec, config: dict[str, Any]) -> int | None:
    """The length the checkpoint was made for; None where the config has none, or a value that loading will refuse."""
    try:
        positions = spec.positions(config)
    except (KeyError, TypeError, ValueError):
        return None
    return positions if isinstance(positions, int) else None


def _whole(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
