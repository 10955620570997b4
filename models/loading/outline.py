"""The matrices that a model will have in memory, by its files' headers alone: no weight is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from ..decoder_config import DecoderConfig
from ..errors import ArgumentError, ModelError
from ..files.arguments import check
from ..files.gguf.tensors import FileTensor
from ..files.lora import read_adapter
from ..files.sources import local, locate
from ..files.weights import Published
from ..kernels.cpu import blocks, panels
from ..kernels.cpu.blocks import GROUP, TYPES, WIDTH
from ..layers.quantize import BlockQuantizer, in_blocks
from ..parallel.placement import choose_device, short
from . import assemble
from .native import describe_native
from .packing import choose_packing
from .recognition import read_checkpoint


@dataclass(frozen=True, slots=True)
class Matrix:
    """One weight matrix or one stack of matrices; routers of experts are left out."""

    name: str
    shape: tuple[int, ...]
    types: str  # its block types in memory, such as "Q4_K+Q6_K", or its dtype
    stored: str  # its types in the file
    bytes: int  # bytes in memory
    read: float  # share of it that a forward of one token reads
    rows: bool  # it is looked up by rows, and multiplies nothing

    @property
    def packed(self) -> bool:
        """Whether it is block-quantized in memory."""
        return self.types.partition("+")[0] in TYPES


@dataclass(frozen=True, slots=True)
class Outline:
    """The memory of a model that `load` would make, from its files' headers."""

    name: str
    family: str
    attention: str
    config: DecoderConfig
    positions: int | None
    device: torch.device
    dtype: torch.dtype
    activations: str | None  # what block-quantized weights multiply; None: there are none
    is_gguf: bool
    why_plain: str  # why the matrices of a GGUF file do not stay packed; "" where they do, and of other files
    matrices: tuple[Matrix, ...]
    vectors: int  # bytes of all other parameters
    parameters: int  # numbers in all of them
    loading: int  # bytes of the largest tensor while it is read, in addition to the weights

    @property
    def masked(self) -> bool:
        """Whether it is a masked model."""
        return self.attention != "causal"

    @property
    def limit(self) -> int | None:
        """The longest row that it runs with; None: any."""
        bounds = (self.positions, self.config.least_window if self.masked else None)
        return min(filter(None, bounds), default=None)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return self.vectors + sum(matrix.bytes for matrix in self.matrices)

    def cache_bytes(self, positions: int, dtype: torch.dtype) -> int:
        """Bytes of keys and values of one row."""
        layers = [self.config.of(layer) for layer in range(self.config.layers)]
        return positions * dtype.itemsize * 2 * sum(layer.kv_heads * layer.head_dim for layer in layers)


def outline(
    name_or_path: str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    device_map: str | None = None,
    quantize: str | None = None,
    packed: bool | None = None,
    activations: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    offline: bool = False,
) -> Outline:
    """What `load` will make of a local model, with the same arguments.

    Raises ModelError for what cannot be loaded, and for what is known once it is loaded: a model that runs through
    transformers or draws images, torchao's quantization, layers spread over several devices.
    """
    check(quantize=quantize, device_map=device_map, activations=activations)
    lora = None if adapter is None else read_adapter(adapter, offline=offline)
    source = locate(name_or_path)
    target, _ = choose_device(device)
    found = read_checkpoint(source, adapted=lora is not None)
    if found.spec is None or found.spec.imaging:
        if found.why:
            why, hint = f"runs through transformers ({found.why})", "add --sampler to plan a request, which loads it"
        else:
            why, hint = "is no language model", "plan a model of text"
        raise ModelError(f"{source.name} {why}: its memory is known only once it is loaded", hint)
    if quantize is not None and not in_blocks(quantize, target):
        raise ArgumentError(
            f"quantize={quantize} on {target} is done by torchao: the memory is known only once the model is loaded",
            "leave quantize out",
        )
    if device_map is not None and (target.type != "cpu" or torch.cuda.is_available()):
        raise ArgumentError(
            f"device_map={device_map}: what each device holds is known only once the model is loaded",
            "leave device_map out",
        )
    native = describe_native(found, target, dtype=dtype, quantize=quantize, adapter=lora)
    decoder = assemble.empty(native.shape)
    expected = assemble.targets(native.spec, decoder, native.published)
    used = assemble.check(native.spec, expected, native.published, native.shape)
    rounding = None if quantize is None else BlockQuantizer(quantize, target)
    packing, why_plain = choose_packing(
        source,
        target,
        dtype,
        packed,
        activations if rounding is None else None,
        quantize=quantize,
        device_map=device_map,
        adapter=adapter,
    )
    chosen = {} if packing is None else packing.chosen(decoder, expected, used)
    kept = {  # whether each matrix, or every one of a stack, stays packed
        name: [(tensor.kind, tensor.shape[-2]) for tensor in tensors for _ in range(prod(tensor.shape[:-2]))]
        for name, tensors in chosen.items()
    }
    in_panels = rounding is None and device_map is None
    stored = _stored_types(expected, used)
    matrices, vectors = _matrices(decoder, kept, rounding, stored, native.dtype, target, in_panels=in_panels)
    in_use = "float32" if activations is None else activations
    loading = _loading(decoder, expected, used, chosen, rounding, native.dtype)
    return Outline(
        source.name if lora is None else f"{source.name}+{lora.name}",
        native.spec.name,
        native.spec.attention,
        native.shape,
        native.positions,
        target,
        native.dtype,
        in_use if any(matrix.packed for matrix in matrices) else None,
        source.gguf is not None,
        why_plain if source.gguf is not None else "",
        matrices,
        vectors,
        sum(parameter.numel() for parameter in decoder.parameters()),
        loading + (0 if lora is None else lora.nbytes),
    )


def _matrices(
    decoder: nn.Module,
    kept: Mapping[str, list[tuple[str, int]]],
    rounding: BlockQuantizer | None,
    stored: Mapping[str, str],
    dtype: torch.dtype,
    device: torch.device,
    *,
    in_panels: bool,
) -> tuple[tuple[Matrix, ...], int]:
    config: DecoderConfig = decoder.config  # type: ignore[assignment]
    found, vectors = [], 0
    for name, parameter in decoder.named_parameters():
        size, is_router = tuple(parameter.shape), name.rpartition(".")[2] in assemble.ROUTER
        if len(size) < 2 or is_router:
            vectors += prod(size) * (torch.float32 if is_router else dtype).itemsize
            continue
        parts = kept.get(name)
        if parts is None and rounding is not None and size[-1] % GROUP == 0:
            parts = [(rounding.block_type(name), size[-2])] * (size[0] if len(size) == 3 else 1)
        if parts is None:
            types, count = short(dtype), prod(size) * dtype.itemsize
            if name == "embed.weight" and config.tied and in_panels and panels.is_faster(size, dtype, device):
                count *= 2  # the head has a copy in its own layout
        else:
            types = "+".join(dict.fromkeys(each for each, _ in parts))
            count = sum(-(-rows // WIDTH) * blocks.panel_bytes(each, size[-1]) for each, rows in parts)
        looked_up = name == "embed.weight" and not config.tied
        share = 1.0 if len(size) == 2 or config.experts is None else config.experts.top / config.experts.count
        if name == "embed.weight" and count > prod(size) * dtype.itemsize:
            share = 0.5
        found.append(Matrix(name, size, types, stored.get(name, ""), count, 0.0 if looked_up else share, looked_up))
    return tuple(found), vectors


def _stored_types(expected: Mapping[str, assemble.Target], published: Mapping[str, Published]) -> dict[str, str]:
    types: dict[str, dict[str, None]] = {}
    for name, entry in published.items():
        kind = entry.blocks.kind if entry.blocks is not None else short(entry.dtype) if entry.dtype else "?"
        types.setdefault(expected[name].parameter, {})[kind] = None
    return {name: "+".join(kinds) for name, kinds in types.items()}


def _loading(
    decoder: nn.Module,
    expected: Mapping[str, assemble.Target],
    published: Mapping[str, Published],
    chosen: Mapping[str, Sequence[FileTensor]],
    rounding: BlockQuantizer | None,
    dtype: torch.dtype,
) -> int:
    """Bytes of the largest tensor while it is read, or of all tensors of a packed parameter."""
    most = max((sum(tensor.size for tensor in tensors) for tensors in chosen.values()), default=0)
    for name, entry in published.items():
        count = prod(entry.shape)
        if entry.blocks is None:
            size = count * (entry.dtype or torch.float32).itemsize
        else:
            size = entry.blocks.size
            if expected[name].parameter not in chosen:
                size += count * entry.blocks.dtype.itemsize
        if entry.change is not None:  # merged in float32: the change and the sum
            size += 2 * count * torch.float32.itemsize
        most = max(most, size)
    if rounding is not None:  # a whole parameter is in memory before it is rounded
        most += max((each.numel() for each in decoder.parameters()), default=0) * dtype.itemsize
    return most


def check_tensors(name_or_path: str | os.PathLike[str]) -> None:
    """Raises ModelError, as `load` does, for tensors in a local language model's files that do not match its config."""
    source = local(name_or_path)
    if source is None:
        return
    found = read_checkpoint(source)
    if found.spec is None or found.spec.imaging or not found.published:
        return
    native = describe_native(found, torch.device("cpu"), dtype="auto", quantize=None, adapter=None)
    expected = assemble.targets(native.spec, assemble.empty(native.shape), native.published)
    assemble.check(native.spec, expected, native.published, native.shape)


def memory_described(name_or_path: str | os.PathLike[str]) -> dict[str, str]:
    """What `pardec show` prints of a GGUF file's matrices: packed, dequantized and why. Empty for other files."""
    source = local(name_or_path)
    if source is None or source.gguf is None:
        return {}
    made = outline(name_or_path)
    found: dict[str, str] = {}
    if packed := [matrix for matrix in made.matrices if matrix.packed]:
        found["packed"] = f"{_counted(packed)}, {_megabytes(packed)}; --dense (packed=False) dequantizes"
    for what, why in (
        ("dequantized", made.why_plain or "no kernel multiplies these types"),
        ("plain", "not quantized"),
    ):
        own = [matrix for matrix in made.matrices if not matrix.packed and _is_quantized(matrix) == (what != "plain")]
        if own:
            found[what] = f"{_counted(own)}, {_megabytes(own)} in {short(made.dtype)} ({why})"
    if made.activations is not None:
        found["activations"] = f"{made.activations}, or faster and less precise with --activations int8"
    size = made.cache_bytes(1000, made.dtype) / 1e6
    found["keys and values"] = f"{short(made.dtype)}, {size:.3g} MB per 1,000 positions"
    return found


def _is_quantized(matrix: Matrix) -> bool:
    return any(kind not in ("F32", "F16", "BF16") for kind in matrix.stored.split("+"))


def _counted(matrices: Sequence[Matrix]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(each.stored for each in matrices).most_common())


def _megabytes(matrices: Sequence[Matrix]) -> str:
    return f"{sum(matrix.bytes for matrix in matrices) / 1e6:,.3g} MB"
