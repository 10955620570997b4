"""Quantizes the linear layers to 8 or 4 bits through torchao, an extra; matmuls run in the model's dtype.

Norms, biases, the embedding and the routers of experts are not quantized, nor is a head tied to the embedding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, ModelError, install
from ..kernels.cpu.blocks import BlockWeight
from ..parallel.placement import short

_GROUPS = (64, 32)  # group sizes in int4 (weights that share a scale): the first that divides a row
_TILE = 16  # rows per tile of the 4-bit matmul on CPUs
_EMBEDDING = "embed.weight"
_ROUTER = ".router_weight"


@dataclass(slots=True)
class Quantizer:
    """Quantizes the weights of one model and lists those that it could not. Made by `quantizer`."""

    kind: str
    device: torch.device
    version: str  # torchao's
    convert: Callable[[nn.Linear, Any], Any]  # torchao's quantize_
    config: Callable[[int], Any]  # group size -> torchao's configuration
    count: int = 0  # number of quantized weights
    skipped: dict[str, list[str]] = field(default_factory=dict)  # reason -> names of weights

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """The weight `name` [N, K] quantized; anything else, or a weight that cannot be, unchanged."""
        if weight.ndim < 2 or name == _EMBEDDING or name.endswith(_ROUTER):
            return weight
        why = self._refuses(weight)
        if why is not None:
            self.skip(name, why)
            return weight
        group = _group(weight.shape[1]) or 0
        holder = nn.Linear(1, 1, bias=False, device="meta")
        holder.weight = nn.Parameter(weight, requires_grad=False)
        self.convert(holder, self.config(group))
        self.count += 1
        return holder.weight.detach()

    def skip(self, name: str, why: str) -> None:
        """Notes that a weight is not quantized."""
        self.skipped.setdefault(why, []).append(name)

    def summary(self) -> str:
        """A summary in one line. Raises ModelError if nothing was quantized."""
        left = [
            f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''} ({why})"
            for why, names in self.skipped.items()
        ]
        if not self.count:
            raise ModelError(
                f"no linear layer of the model can be quantized to {self.kind}: {'; '.join(left) or 'it has none'}",
                'leave quantize out, or use quantize="int8"',
            )
        total = self.count + sum(map(len, self.skipped.values()))
        summary = f"{self.kind} in {self.count} of {total} matrices (torchao {self.version})"
        return f"{summary}, not in {', '.join(left)}" if left else summary

    def _refuses(self, weight: Tensor) -> str | None:
        """Why this weight cannot be quantized; None if it can."""
        if weight.ndim != 2:
            return f"it has {weight.ndim} dimensions"
        if self.kind != "int4":
            return None
        if _group(weight.shape[1]) is None:
            return f"{weight.shape[1]} columns are not a multiple of {_GROUPS[-1]}"
        if self.device.type == "cpu" and weight.shape[0] % _TILE:
            return f"{weight.shape[0]} rows are not a multiple of {_TILE}"
        return None


def preferred_dtype(kind: str | None, requested: str | torch.dtype) -> tuple[torch.dtype, str] | None:
    """The dtype that "auto" means for `kind`, and why; None if any will do."""
    if kind != "int4" or requested != "auto":
        return None
    return torch.bfloat16, "int4 matmuls are slow in float32, or not available"


def quantizer(kind: str, device: torch.device, dtype: torch.dtype) -> Quantizer:
    """The quantizer to `kind` on `device`.

    Raises ModelError if torchao is missing or too old, or if this device or dtype has no such matmul.
    """
    if kind == "fp8" and not _capable(device, (8, 9)):
        raise ArgumentError(
            f"fp8 needs a CUDA GPU of compute capability 8.9 or more, and the model is on {device}",
            'use quantize="int8", which runs everywhere',
        )
    if kind == "int4" and device.type != "cpu":
        if not _capable(device, (8, 0)):
            raise ArgumentError(
                f"int4 needs a CPU or a CUDA GPU of compute capability 8.0 or more, and the model is on {device}",
                'use quantize="int8", which runs everywhere',
            )
        if dtype != torch.bfloat16:
            raise ArgumentError(
                f"int4 runs in bfloat16 on a GPU, and the model is in {short(dtype)}", 'add dtype="bfloat16"'
            )
    try:
        convert, config = _of_torchao(kind, device)
    except ImportError as error:
        with suppress(metadata.PackageNotFoundError):
            raise ModelError(
                f"torchao {metadata.version('torchao')} has no {kind} for {device.type}: {error}", install("quant")
            ) from error
        raise ModelError("quantize needs torchao, which is not installed", install("quant")) from error
    return Quantizer(kind, device, metadata.version("torchao"), convert, config)


def quantize_linears(quantizer: Quantizer, model: nn.Module, embedding: Tensor) -> None:
    """Quantizes the `nn.Linear` layers of another library's model in place.

    Weights tied to `embedding` [V, E] and those of other layers are not quantized.
    """
    for name, module in model.named_modules():
        for leaf, weight in list(module.named_parameters(recurse=False)):
            whole = f"{name}.{leaf}" if name else leaf
            if weight.ndim < 2 or isinstance(module, nn.Embedding):
                continue
            if weight is embedding:
                quantizer.skip(whole, "it is the embedding")
            elif not isinstance(module, nn.Linear):
                quantizer.skip(whole, f"it is no linear layer but of a {type(module).__name__}")
            else:
                module.weight = nn.Parameter(quantizer(whole, weight.detach()), requires_grad=False)


def weight_bytes(weights: Iterable[Tensor]) -> int:
    """Bytes of the weights, scales and zero points included; a tied weight counts once."""
    return sum(_bytes(weight) for weight in {id(weight): weight for weight in weights}.values())


def _bytes(weight: Tensor) -> int:
    if isinstance(weight, BlockWeight):
        return weight.stored_bytes
    inner = getattr(weight, "__tensor_flatten__", None)
    if inner is None:
        return weight.nbytes
    names, _ = inner()
    return sum(_bytes(getattr(weight, name)) for name in names)


def _group(columns: int) -> int | None:
    return next((size for size in _GROUPS if columns % size == 0), None)


def _capable(device: torch.device, least: tuple[int, int]) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= least


def _of_torchao(kind: str, device: torch.device) -> tuple[Callable[[nn.Linear, Any], Any], Callable[[int], Any]]:
    """torchao's `quantize_`, and a function from a group size to its configuration."""
    # On import it warns of kernels for other machines, and of deprecated parts of torch that it uses.
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        from torchao import quantization as library

        if kind == "int8":
            return library.quantize_, lambda group: library.Int8WeightOnlyConfig(set_inductor_config=False)
        if kind == "fp8":
            return library.quantize_, lambda group: library.Float8WeightOnlyConfig(set_inductor_config=False)
        if device.type == "cpu":
            from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

            return library.quantize_, lambda group: PrototypeInt4WeightOnlyConfig(
                group_size=group, set_inductor_config=False
            )
        return library.quantize_, lambda group: library.Int4WeightOnlyConfig(
            group_size=group, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
        )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
