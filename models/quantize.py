"""Weights in fewer bits through torchao, an extra: matrices are kept in 8 or 4, products are made in the model's dtype.

Norms, biases and the embedding, which is looked up, stay as they are, and so does a head that is the embedding.
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

from .errors import ArgumentError, ModelError, install
from .placement import short

_GROUPS = (64, 32)  # weights of a row that share a scale in int4: the first that divides the row
_TILE = 16  # rows that the 4-bit product of CPUs takes at once
_EMBEDDING = "embed.weight"


@dataclass(slots=True)
class Quantizer:
    """What makes each matrix of one model smaller, and remembers which it could not. Made by `quantizer`."""

    kind: str
    device: torch.device
    version: str  # torchao's
    convert: Callable[[nn.Linear, Any], Any]  # torchao's quantize_
    config: Callable[[int], Any]  # weights that share a scale -> torchao's configuration
    done: int = 0
    kept: dict[str, list[str]] = field(default_factory=dict)  # why -> names

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """The matrix `name` [N, K] in fewer bits; anything else, and what cannot be, as it came."""
        if weight.ndim < 2 or name == _EMBEDDING:
            return weight
        why = self._refuses(weight)
        if why is not None:
            self.keep(name, why)
            return weight
        group = _group(weight.shape[1]) or 0
        holder = nn.Linear(1, 1, bias=False, device="meta")
        holder.weight = nn.Parameter(weight, requires_grad=False)
        self.convert(holder, self.config(group))
        self.done += 1
        return holder.weight.detach()

    def keep(self, name: str, why: str) -> None:
        """Notes that a matrix stays as it is."""
        self.kept.setdefault(why, []).append(name)

    def said(self) -> str:
        """What was done, in one line. Raises ModelError where there was nothing to do."""
        left = [
            f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''} ({why})"
            for why, names in self.kept.items()
        ]
        if not self.done:
            raise ModelError(
                f"no matrix of the model can be kept in {self.kind}: {'; '.join(left) or 'it has none'}",
                'leave quantize out, or use quantize="int8"',
            )
        total = self.done + sum(map(len, self.kept.values()))
        said = f"{self.kind} in {self.done} of {total} matrices (torchao {self.version})"
        return f"{said}, not in {', '.join(left)}" if left else said

    def _refuses(self, weight: Tensor) -> str | None:
        """Why this matrix stays as it is; None where it need not."""
        if weight.ndim != 2:
            return f"it has {weight.ndim} dimensions"
        if self.kind != "int4":
            return None
        if _group(weight.shape[1]) is None:
            return f"{weight.shape[1]} columns are no multiple of {_GROUPS[-1]}"
        if self.device.type == "cpu" and weight.shape[0] % _TILE:
            return f"{weight.shape[0]} rows are no multiple of {_TILE}"
        return None


def fitting(kind: str | None, asked: str | torch.dtype) -> tuple[torch.dtype, str] | None:
    """The dtype that "auto" is for the sake of `kind`, and why; None where the kind does not mind."""
    if kind != "int4" or asked != "auto":
        return None
    return torch.bfloat16, "products with int4 are slow in float32, or not to be had"


def quantizer(kind: str, device: torch.device, dtype: torch.dtype) -> Quantizer:
    """What keeps matrices in `kind` on `device`.

    Raises ModelError where torchao is missing or too old, or where this device or dtype has no such product.
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
                f"torchao {metadata.version('torchao')} has no {kind} for {device.type}: {error}",
                install("quant"),
            ) from error
        raise ModelError("quantize needs torchao, which is not installed", install("quant")) from error
    return Quantizer(kind, device, metadata.version("torchao"), convert, config)


def quantize_linears(quantizer: Quantizer, model: nn.Module, embedding: Tensor) -> None:
    """Makes the matrices of another library's model smaller in place: those of its `nn.Linear`.

    What is tied to `embedding` [V, E] stays, like matrices of other layers.
    """
    for name, module in model.named_modules():
        for leaf, weight in list(module.named_parameters(recurse=False)):
            whole = f"{name}.{leaf}" if name else leaf
            if weight.ndim < 2 or isinstance(module, nn.Embedding):
                continue
            if weight is embedding:
                quantizer.keep(whole, "it is the embedding")
            elif not isinstance(module, nn.Linear):
                quantizer.keep(whole, f"it is no linear layer but of a {type(module).__name__}")
            else:
                module.weight = nn.Parameter(quantizer(whole, weight.detach()), requires_grad=False)


def held_bytes(weights: Iterable[Tensor]) -> int:
    """Bytes that weights take, scales and zero points included; one that is there twice counts once."""
    return sum(_bytes(weight) for weight in {id(weight): weight for weight in weights}.values())


def _bytes(weight: Tensor) -> int:
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
    """torchao's `quantize_`, and its configuration for groups of that many weights."""
    # On import it warns of kernels for other machines, and of what it uses of torch that will change.
    talkers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [talker.level for talker in talkers]
    for talker in talkers:
        talker.setLevel(logging.ERROR)
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
        for talker, level in zip(talkers, levels, strict=True):
            talker.setLevel(level)
