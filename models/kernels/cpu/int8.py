"""Weights in 8 bits, for matmuls whose every digit need not be right: those of drafts.

    W[n, k] ~ scale[n] * (packed[n // 32, k // 4, n % 32, k % 4] - 128),  scale[n] = max over k of |W[n, k]| / 127

What they multiply is rounded to 8 bits as well, 64 numbers by 64: half the bytes of bfloat16 come from memory, and four
products are made at once. Outputs differ from those of the weights by about a hundredth.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import library
from .library import COUNT, POINTER, STEP
from .packed import PackedWeight

WIDTH, EACH = 32, 4  # rows of a panel, and k that lie together, as int8.c has them
_FILE = Path(__file__).with_suffix(".c")
_ARGUMENTS = (COUNT, POINTER, STEP, *[POINTER] * 3, STEP, POINTER, *[COUNT] * 4)


class Int8Weight(PackedWeight):
    """A matrix [N, K] of weights in 8 bits; see above."""

    packed: Tensor  # [ceil(N / 32), ceil(K / 4), 32, 4] uint8, 0 behind the last row and k, which is 128
    scale: Tensor  # [N, filled up to whole panels] float32

    @staticmethod
    def __new__(cls, packed: Tensor, scale: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Int8Weight:
        weight: Int8Weight = Tensor._make_wrapper_subclass(cls, (rows, columns), dtype=dtype, device=packed.device)
        weight.packed, weight.scale = packed, scale
        return weight

    def __init__(self, *parts: object) -> None: ...

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """The tensors that it takes memory with."""
        return ["packed", "scale"], None

    @property
    def parts(self) -> tuple[Tensor, Tensor, int, int, torch.dtype]:
        return self.packed, self.scale, *self.shape, self.dtype

    @property
    def dense(self) -> Tensor:
        rows, columns = self.shape
        whole = self.packed.transpose(1, 2).reshape(-1, self.packed.shape[1] * EACH)[:rows, :columns]
        return ((whole.float() - 128) * self.scale[:rows, None]).to(self.dtype)

    def matmul(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        run, (rows, length) = _kernel(), self.shape
        if run is None or x.dtype not in library.TYPES or not x.is_cpu or x.requires_grad or library.is_traced():
            out = torch.nn.functional.linear(x, self.dense.to(x.dtype))
            return out if base is None else out + base
        flat = x.reshape(-1, length)
        flat = flat if flat.stride(1) == 1 else flat.contiguous()
        out = torch.empty((*x.shape[:-1], rows), dtype=x.dtype)
        start, apart = None, 0
        if base is not None:
            base = base.contiguous().to(x.dtype)
            start, apart = base.data_ptr(), 0 if base.dim() == 1 else rows
        weights = self.packed.data_ptr(), self.scale.data_ptr()
        counts = len(flat), rows, length, library.threads(len(flat) * self.numel())
        entries = library.TYPES[x.dtype], flat.data_ptr(), flat.stride(0)
        if run(*entries, *weights, start, apart, out.data_ptr(), *counts):
            raise MemoryError(f"no memory for a matmul of {len(flat)} rows of {length}")
        return out


def quantized(weight: Tensor) -> Int8Weight:
    """A matrix [N, K] of finite weights, rounded."""
    rows, columns = weight.shape
    wide = torch.full((-(-rows // WIDTH) * WIDTH, -(-columns // EACH) * EACH), 128, dtype=torch.uint8)
    scale = torch.zeros(len(wide))
    scale[:rows] = weight.float().abs().amax(1) / 127
    wide[:rows, :columns] = (weight / scale[:rows, None].clamp(min=torch.finfo().tiny)).round_() + 128
    packed = wide.view(-1, WIDTH, wide.shape[1] // EACH, EACH).transpose(1, 2).contiguous()
    return Int8Weight(packed, scale, rows, columns, weight.dtype)


def runs() -> bool:
    """Whether the processor multiplies bytes, by a kernel that could be compiled and may be chosen."""
    return library.allowed() and _able()


@cache
def _able() -> bool:
    able = library.kernel(_FILE, "pardec_multiplies_int8", ())
    return able is not None and bool(able())


def _kernel() -> Any:
    return library.kernel(_FILE, "pardec_int8", _ARGUMENTS) if runs() else None
