"""A native model by the headers of its files: its shape, its tensors, and the dtype that its weights will have."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..decoder_config import DecoderConfig
from ..families import FamilySpec
from ..files import configs
from ..files.lora import Adapter
from ..files.quantized import whole_weights
from ..files.weights import Published, files_of, inspect
from ..layers.quantize import preferred_dtype
from ..parallel.placement import choose_dtype, stored_dtype
from . import assemble
from .recognition import Recognised


@dataclass(frozen=True, slots=True)
class NativeModel:
    """A native model as its files describe it, before its weights are read; `describe_native` makes it."""

    spec: FamilySpec
    shape: DecoderConfig
    positions: int | None
    published: dict[str, Published]  # with an adapter's changes
    dtype: torch.dtype
    dtype_reason: str


def describe_native(
    found: Recognised,
    device: torch.device,
    *,
    dtype: str | torch.dtype,
    quantize: str | None,
    adapter: Adapter | None,
) -> NativeModel:
    """The model that `found`, a checkpoint of a native family, gives with these arguments of `load`.

    Raises ModelError for a quantization that is not known, missing weights, and an adapter of another model.
    """
    source, spec = found.source, found.spec
    assert spec is not None, "of a native family"
    with configs.reading(source.name):
        shape, positions = spec.decoder(found.config), spec.positions(found.config)
    published = found.published or inspect(files_of(source.folder, source.gguf))
    if quantized := found.config.get("quantization_config"):
        published = whole_weights(source.name, quantized, published)
    shape = assemble.as_published(spec, shape, published)
    if adapter is not None:
        names = assemble.names_of(spec, shape, published)
        tied = (str(names["embed.weight"]), str(names["head.weight"])) if shape.tied else None
        published = adapter.merge(published, base=source.name, tied=tied, twin=spec.twin)
    kind, reason = preferred_dtype(quantize, dtype, device) or choose_dtype(dtype, device, stored_dtype(published))
    return NativeModel(spec, shape, positions, published, kind, reason)
