"""Weights in panels: matmuls of few rows with matrices larger than the processor's caches, at the speed of memory.

    panels[p, k, j, 0] = W[48 p + j, k] of float32;  panels[p, k, j, i] = W[48 p + j, 2 k + i] of bfloat16

PyTorch's matmuls of 2 to 48 float32 rows take as long as those of 64 (with AVX2: those of 2 as long as of 8), since the
matrix comes from memory before its arithmetic begins; here the two go on at once. A sum is made in one order whatever
else is multiplied, so that a row gives the same bits alone and in any batch.

Weights are float32 or bfloat16. Sums are float32 in either case; with bfloat16 weights x may be bfloat16, and what
comes out is rounded to its type. Half the bytes are half the time where memory decides, as in forwards of few tokens;
where the processor multiplies pairs of bfloat16, the arithmetic takes half the time as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from . import library
from .library import COUNT, POINTER, STEP
from .memory import room
from .packed import PackedWeight

WIDTH = 48  # rows of a panel, as in panels.c
LEAST = 2**18  # a smaller float32 matrix may fit a cache, where PyTorch's matmul is as fast
LEAST_BFLOAT16 = 2**14  # for a smaller bfloat16 matrix, a call costs more than PyTorch's slow arithmetic
_FILE = Path(__file__).with_suffix(".c")
_FLOATS, _HALVES, _PAIRS = range(3)  # types of x and of weights: see panels.c
_ARGUMENTS = (POINTER, STEP, POINTER, STEP, COUNT, POINTER, STEP, POINTER, COUNT, COUNT, COUNT, COUNT)


class Panels(PackedWeight):
    """A matrix [N, K] of weights in panels."""

    packed: Tensor  # [ceil(N / 48), K, 48, 1], or [ceil(N / 48), ceil(K / 2), 48, 2]; zero after the last row and k

    @staticmethod
    def __new__(cls, packed: Tensor, rows: int, columns: int) -> Panels:
        weight: Panels = Tensor._make_wrapper_subclass(cls, (rows, columns), dtype=packed.dtype, device=packed.device)
        weight.packed = packed
        return weight

    def __init__(self, packed: Tensor, rows: int, columns: int) -> None: ...

    @property
    def parts(self) -> tuple[Tensor, int, int]:
        return self.packed, *self.shape

    @property
    def dense(self) -> Tensor:
        return rearrange(self.packed, "p k j i -> (p j) (k i)")[: self.shape[0], : self.shape[1]]

    @property
    def kind(self) -> int:
        """The types that are multiplied where x is float32, as in panels.c."""
        return _FLOATS if self.dtype == torch.float32 else _HALVES

    def rows(self, index: Tensor) -> Tensor:
        return self.packed[index // WIDTH, :, index % WIDTH].flatten(-2)[..., : self.shape[1]]

    def fill(self, source: Tensor, start: int = 0) -> None:
        """Copies `source` [n, K] to the rows from `start` on."""
        row = 0
        while row < len(source):
            panel, first = divmod(start + row, WIDTH)
            part, each = source[row : row + WIDTH - first], self.packed.shape[3]
            for i in range(each):
                entries = part[:, i::each].t()
                self.packed[panel, : len(entries), first : first + len(part), i] = entries
            row += len(part)

    def matmul(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        run = kernel()
        fits = x.dtype == torch.float32 or x.dtype == self.dtype
        if run is None or not fits or not x.is_cpu or x.requires_grad or library.is_traced():
            out = F.linear(x, self.dense.to(x.dtype))
            return out if base is None else out + base
        rows, length = self.shape
        kind = self.kind
        flat = x.reshape(-1, length)
        if x.dtype == torch.bfloat16 and length % 2 == 0 and multiplies_pairs():
            kind, length = _PAIRS, length // 2
            whole = flat.is_contiguous() and flat.storage_offset() % 2 == 0
            flat = (flat if whole else flat.clone(memory_format=torch.contiguous_format)).view(torch.float32)
        elif x.dtype != torch.float32:
            flat = flat.float()
        if flat.stride(1) != 1:
            flat = flat.contiguous()
        out = torch.empty((*x.shape[:-1], rows))
        count, start, apart = flat.shape[0], None, 0
        if base is not None:
            base = base.contiguous().float()
            start, apart = base.data_ptr(), 0 if base.dim() == 1 else rows
        ends = out.data_ptr(), count, rows, length, library.threads(count * self.numel())
        if run(flat.data_ptr(), flat.stride(0), self.packed.data_ptr(), 0, kind, start, apart, *ends):
            raise MemoryError(f"no memory for a matmul of {count} rows of {length}")
        return out if x.dtype == torch.float32 else out.to(x.dtype)


def is_faster(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether panels make matmuls of `dtype` with weights of this shape faster."""
    least = {torch.float32: LEAST, torch.bfloat16: LEAST_BFLOAT16}.get(dtype)
    if least is None or (dtype == torch.bfloat16 and library.has_tiles()):
        return False
    return runs(shape, device, least)


def runs(shape: Sequence[int], device: torch.device, least: int = LEAST) -> bool:
    """Whether a matrix has at least `least` entries, and there is a kernel for panels."""
    large = len(shape) == 2 and shape[0] * shape[1] >= least
    return large and device.type == "cpu" and library.allowed() and kernel() is not None


def empty(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Panels:
    """An empty matrix of `rows` and `columns` in panels, float32 or bfloat16."""
    each = 1 if dtype == torch.float32 else 2
    shape = -(-rows // WIDTH), -(-columns // each), WIDTH, each
    packed = room(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    packed[-1, :, (rows - 1) % WIDTH + 1 :] = 0
    packed[:, columns // each :] = 0
    return Panels(packed, rows, columns)


def kernel() -> Any:
    """The compiled matmul; None where there is none."""
    return library.kernel(_FILE, "pardec_product", _ARGUMENTS)


@cache
def multiplies_pairs() -> bool:
    """Whether the kernel multiplies bfloat16 in pairs."""
    run = library.kernel(_FILE, "pardec_pairs", ())
    return run is not None and bool(run())
