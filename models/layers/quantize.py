"""Quantizes weights to 8 or 4 bits: on CPUs to blocks that pardec's own kernel multiplies, elsewhere through torchao.

Norms, biases and the routers of experts are not quantized. torchao, an extra, leaves the embedding and a head tied to
it as they are, and multiplies in the model's dtype.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, ModelError, install
from ..kernels.cpu import block_rounding, library
from ..kernels.cpu.blocks import GROUP, Activations, BlockWeight, kernel
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
    count: int = 0  # number of quantized weights
    skipped: dict[str, list[str]] = field(default_factory=dict)  # reason -> names of weights
    embeddings: ClassVar[bool] = False  # whether embeddings, and heads tied to them, are quantized

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """The weight `name` [N, K] quantized; anything else, or a weight that cannot be, unchanged."""
        if weight.ndim < 2 or (name == _EMBEDDING and not self.embeddings) or name.endswith(_ROUTER):
            return weight
        why = f"it has {weight.ndim} dimensions" if weight.ndim != 2 else self._refuses(name, weight)
        if why is not None:
            self.skip(name, why)
            return weight
        self.count += 1
        return self._converted(name, weight)

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
                self._hint(),
            )
        total = self.count + sum(map(len, self.skipped.values()))
        summary = f"{self.kind} in {self.count} of {total} matrices ({self._method()})"
        return f"{summary}, not in {', '.join(left)}" if left else summary

    def _refuses(self, name: str, weight: Tensor) -> str | None:
        """Why this matrix cannot be quantized; None if it can."""
        raise NotImplementedError

    def _converted(self, name: str, weight: Tensor) -> Tensor:
        raise NotImplementedError

    def _method(self) -> str:
        """What multiplies the weights, in a few words."""
        raise NotImplementedError

    def _hint(self) -> str:
        return 'leave quantize out, or use quantize="int8"'


@dataclass(slots=True)
class TorchaoQuantizer(Quantizer):
    """Quantizes with torchao, which multiplies in the model's dtype."""

    version: str = ""  # torchao's
    convert: Callable[[nn.Linear, Any], Any] = field(kw_only=True)  # torchao's quantize_
    config: Callable[[int], Any] = field(kw_only=True)  # group size -> torchao's configuration

    def _converted(self, name: str, weight: Tensor) -> Tensor:
        group = _group(weight.shape[1]) or 0
        holder = nn.Linear(1, 1, bias=False, device="meta")
        holder.weight = nn.Parameter(weight, requires_grad=False)
        self.convert(holder, self.config(group))
        return holder.weight.detach()

    def _refuses(self, name: str, weight: Tensor) -> str | None:
        if self.kind != "int4":
            return None
        if _group(weight.shape[1]) is None:
            return f"{weight.shape[1]} columns are not a multiple of {_GROUPS[-1]}"
        if self.device.type == "cpu" and weight.shape[0] % _TILE:
            return f"{weight.shape[0]} rows are not a multiple of {_TILE}"
        return None

    def _method(self) -> str:
        return f"torchao {self.version}"


@dataclass(slots=True)
class BlockQuantizer(Quantizer):
    """Rounds matrices to blocks of 32 weights, which a kernel for CPUs multiplies as they are.

    int8 is Q8_0 of ggml, and int4 is its Q4_1, with embeddings and heads in Q8_0.
    """

    dtype: torch.dtype = torch.float32
    activations: Activations = "float32"
    embeddings: ClassVar[bool] = True

    def block_type(self, name: str) -> str:
        """The type of the blocks of a weight."""
        return "Q4_1" if self.kind == "int4" and not _is_vocabulary(name) else "Q8_0"

    def _converted(self, name: str, weight: Tensor) -> Tensor:
        return block_rounding.rounded(self.block_type(name), weight, self.dtype, self.activations)

    def _refuses(self, name: str, weight: Tensor) -> str | None:
        if weight.shape[1] % GROUP:
            return f"{weight.shape[1]} columns are not a multiple of {GROUP}"
        if block_rounding.overflows(self.block_type(name), weight):
            return "its scales are beyond float16"
        return None

    def _method(self) -> str:
        return f"blocks of {GROUP}, activations {self.activations}"

    def _hint(self) -> str:
        return "leave quantize out"


def _is_vocabulary(name: str) -> bool:
    """Whether a matrix is an embedding or a head, by its own name or that of transformers."""
    return name.rpartition(".")[0].rpartition(".")[2] in ("embed", "head", "lm_head", "embed_out")


def in_blocks(kind: str | None, device: torch.device) -> bool:
    """Whether `kind` on `device` means blocks of weights that a kernel of pardec's multiplies."""
    return kind in ("int8", "int4") and device.type == "cpu" and library.allowed() and kernel() is not None


def preferred_dtype(
    kind: str | None, requested: str | torch.dtype, device: torch.device
) -> tuple[torch.dtype, str] | None:
    """The dtype that "auto" means for `kind`, and why; None if any will do."""
    if kind != "int4" or requested != "auto" or in_blocks(kind, device):
        return None
    return torch.bfloat16, "int4 matmuls are slow in float32, or not available"


def quantizer(kind: str, device: torch.device, dtype: torch.dtype, activations: str | None = None) -> Quantizer:
    """The quantizer to `kind` on `device`: to blocks on a CPU with a kernel for them, else by torchao.

    Raises ModelError if torchao is needed and missing or too old, if this device or dtype has no such matmul, or if
    `activations`, what blocks multiply, were chosen where there are no blocks.
    """
    if in_blocks(kind, device):
        return BlockQuantizer(kind, device, dtype=dtype, activations="int8" if activations == "int8" else "float32")
    if activations is not None:
        reason = f"on {device} torchao multiplies quantized weights" if kind != "fp8" else "fp8 weights are torchao's"
        if device.type == "cpu" and kind != "fp8":
            reason = "there is no kernel for packed weights here"
        raise ArgumentError(f"activations={activations} cannot be followed: {reason}", "leave activations out")
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
    return TorchaoQuantizer(kind, device, version=metadata.version("torchao"), convert=convert, config=config)


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
