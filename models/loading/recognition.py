"""Recognises a checkpoint by its configuration and tensor names, before any weights are read."""

from __future__ import annotations

import os
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError
from ..families import FAMILIES, FamilySpec, Unsupported, architecture, infinity, mar, match, var
from ..families.llamagen import read_config
from ..files import configs
from ..files.catalog import EMBEDDED
from ..files.quantized import scheme_of
from ..files.sources import MAR_FILE, Source, locate, read_json
from ..files.tokenizers import load_tokenizer
from ..files.weights import Published, files_of, inspect, weight_files
from .decoding_config import (
    build_decoding_config,
    check_autoregressive,
    check_class,
    check_tokenizer,
    describe_ends,
    end_ids,
)
from .kinds import IMAGE_MODELS, NO_LANGUAGE_MODELS, own_family
from .unread import mtp_layers

_BY_TENSORS = {"mar": mar, "var": var, "infinity": infinity}  # model_type -> what reads the configuration off tensors


@dataclass(frozen=True, slots=True)
class Recognised:
    """A checkpoint as its files describe it, before a weight is read. Made by `read_checkpoint`."""

    source: Source
    config: dict[str, Any]
    published: dict[str, Published]  # empty where the weights cannot be found or read
    spec: FamilySpec | None  # its native family
    why: str = ""  # without a family: why transformers must run it; "" for `NO_LANGUAGE_MODELS`


def read_checkpoint(source: Source, *, attention: str | None = None, adapted: bool = False) -> Recognised:
    """Reads the configuration and the names of the tensors, and recognises the family.

    Args:
        source: the checkpoint's files.
        attention: the caller's choice, which a config's `is_causal` does not contradict.
        adapted: whether the caller names an adapter to merge.

    Raises ModelError for a config that cannot be read, and for a folder with an adapter that nothing merges.
    """
    if not adapted:
        _refuse_adapter(source)
    with configs.reading(source.name):
        config, published = read_description(source)
    with suppress(ModelError):  # raised again by what needs the tensors
        published = published or inspect(files_of(source.folder, source.gguf))
    configs.check_config(config, f"{source.name}: config.json", published)
    if attention not in (None, "causal"):
        config = {key: value for key, value in config.items() if key != "is_causal"}
    if config.get("model_type") in NO_LANGUAGE_MODELS:
        return Recognised(source, config, published, None)
    with configs.reading(source.name):
        return Recognised(source, config, published, *recognise(config, published))


def _refuse_adapter(source: Source) -> None:
    """Raises ModelError for a folder that holds an adapter, with which transformers would load it (or its base)."""
    if source.file is not None or source.gguf is not None or not (source.folder / "adapter_config.json").is_file():
        return
    merge = f'adapter="{source.folder}" (--adapter)'
    if (source.folder / "config.json").is_file():
        raise ModelError(
            f"{source.name} holds a checkpoint and an adapter (adapter_config.json)",
            f"{merge} merges the two; to load the checkpoint alone, move the files of the adapter out of the folder",
        )
    base = read_json(source.folder / "adapter_config.json").get("base_model_name_or_path") or "the base"
    raise ModelError(f"{source.name} holds an adapter and no checkpoint", f"load {base} with {merge}")


def read_description(source: Source) -> tuple[dict[str, Any], dict[str, Published]]:
    """The configuration, from config.json or the tensors' shapes, and these tensors if they were inspected."""
    if source.file is not None:
        published = inspect([source.file])
        for family in _BY_TENSORS.values():
            if family.MARK in published:
                return family.describe(source.folder, published, source.file.stem), published
        return read_config(source.file, published), published
    kind = read_json(source.folder / "config.json").get("model_type")
    kind = "mar" if (source.folder / MAR_FILE).is_file() else kind
    if kind in _BY_TENSORS:
        published = inspect(weight_files(source.folder))
        return _BY_TENSORS[kind].describe(source.folder, published), published
    return read_json(source.folder / "config.json", required=True), {}


def recognise(config: dict[str, Any], tensors: Container[str]) -> tuple[FamilySpec | None, str]:
    """The family, or None and the reason why transformers must run the model. Raises ModelError if it cannot."""
    model_type, arch = str(config.get("model_type", "")), architecture(config)
    spec = match(config, tensors)
    if spec is not None:
        try:
            spec.decoder(config)
            return spec, ""
        except Unsupported as error:
            if spec.attention != "causal" or not _known_to_transformers(model_type):  # it would run as another model
                raise
            return None, str(error)
    if _known_to_transformers(model_type):
        return None, f"no native family for model_type {model_type}"
    name = (
        f"model_type {model_type!r}" + (f" with architecture {arch!r}" if arch else "")
        if model_type
        else "no model_type"
    )
    raise ModelError(
        f"config.json has {name}, which no family matches",
        f"families: {', '.join(sorted(FAMILIES))}; other causal LMs run if transformers knows their model_type",
    )


def _known_to_transformers(model_type: str) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type in IMAGE_MODELS


def describe(name_or_path: str | os.PathLike[str], *, revision: str | None = None) -> dict[str, Any]:
    """How loading would interpret this model, and why, as plain values.

    Of a model on the hub all files but the weights are downloaded, and the config alone tells the family.
    Raises ModelError for what cannot be loaded, UnknownModelError for a name that no model has.
    """
    found = read_checkpoint(source := locate(name_or_path, revision=revision, weights=False))
    config, spec = found.config, found.spec
    description: dict[str, Any] = {"name": source.name, "path": str(source.file or source.folder)}
    if config.get("model_type") in NO_LANGUAGE_MODELS:
        return {**description, "family": own_family(config), "loads": "natively"}
    if spec is None:
        check_autoregressive(source.name, None, config, read_json(source.folder / "generation_config.json"))
        check_class(source.name, None, config)
        ends = _ends_described(source, config)
        kind = {"family": str(config.get("model_type")), "loads": f"through transformers: {found.why}"}
        return {**description, **kind, **({"end tokens": ends} if ends else {})}
    with configs.reading(source.name):
        shape, positions = spec.decoder(config), spec.positions(config)
    description |= {"family": f"{spec.name} ({spec.summary})", "loads": "natively", "known by": spec.evidence(config)}
    if quantized := config.get("quantization_config"):
        description["quantized"] = f"{scheme_of(source.name, quantized).described}, made whole as it is read"
    if not spec.imaging or spec.text:
        generation = read_json(source.folder / "generation_config.json")
        tokenizer = load_tokenizer(source.tokenizer)
        decoding = build_decoding_config(spec, config, generation, tokenizer, vocab=shape.vocab, name=source.name)
        if source.folder.parent != EMBEDDED:
            check_class(source.name, spec, config)
            check_tokenizer(source.name, spec, config, tokenizer, shape.vocab)
        values = {"attention": decoding.attention, "shift": decoding.shift, "mask": decoding.mask_id}
        values["block"] = decoding.block
        description |= {
            name: f"{value} (from {decoding.sources[name]})" for name, value in values.items() if value is not None
        }
        description |= {"end tokens": ends} if (ends := decoding.sources["ends"]) else {}
    if found.published and (said := mtp_layers(config, shape.layers, found.published)[0]):
        description["MTP layer"] = said
    description |= {"layers": shape.layers, "width": shape.width, "vocabulary": shape.vocab, "positions": positions}
    return description


def _ends_described(source: Source, config: dict[str, Any]) -> str:
    """The end tokens of a language model that runs through transformers; images have none."""
    if config.get("model_type") in IMAGE_MODELS:
        return ""
    inner = config.get("text_config")
    flat = {**config, **(inner if isinstance(inner, dict) else {})}
    vocabulary = flat.get("vocab_size")
    generation = read_json(source.folder / "generation_config.json")
    known = vocabulary if isinstance(vocabulary, int) else 2**31
    return describe_ends(end_ids(flat, generation, load_tokenizer(source.tokenizer), known))
