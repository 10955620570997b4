"""Weights in 8 bits, for matmuls that need not be precise, as in drafting.

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

WIDTH, EACH = 32, 4  # rows of a panel, and contiguous k, as in int8.c
_FILE = Path(__file__).with_suffix(".c")
_ARGUMENTS = (COUNT, POINTER, STEP, *[POINTER] * 3, STEP, COUNT, POINTER, STEP, *[COUNT] * 4)


class Int8Weight(PackedWeight):
    """A matrix [N, K] of weights in 8 bits, in the layout that the module's docstring gives."""

    packed: Tensor  # [ceil(N / 32), ceil(K / 4), 32, 4] uint8, 0 after the last row and k, which is 128
    scale: Tensor  # [N, filled up to whole panels] float32

    @staticmethod
    def __new__(cls, packed: Tensor, scale: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Int8Weight:
        weight: Int8Weight = Tensor._make_wrapper_subclass(cls, (rows, columns), dtype=dtype, device=packed.device)
        weight.packed, weight.scale = packed, scale
        return weight

    def __init__(self, *parts: object) -> None: ...

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """The names of the tensors that hold its memory."""
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
        if not self._takes(x):
            out = torch.nn.functional.linear(x, self.dense.to(x.dtype))
            return out if base is None else out + base
        rows, length = self.shape
        flat = _by_rows(x, length)
        out = torch.empty((*x.shape[:-1], rows), dtype=x.dtype)
        start, apart, kind = None, 0, library.TYPES[x.dtype]
        if base is not None:
            base = base.contiguous().to(x.dtype)
            start, apart = base.data_ptr(), 0 if base.dim() == 1 else rows
        self._run(kind, flat.data_ptr(), flat.stride(0), start, apart, kind, out.data_ptr(), rows, len(flat))
        return out

    def matmul_into(self, out: Tensor, x: Tensor) -> None:
        if not self._takes(x) or out.dtype != torch.float32 or out.stride(1) != 1:
            super().matmul_into(out, x)
            return
        flat, kinds = _by_rows(x, self.shape[1]), library.TYPES
        to = kinds[out.dtype], out.data_ptr(), out.stride(0)
        self._run(kinds[x.dtype], flat.data_ptr(), flat.stride(0), None, 0, *to, len(flat))

    def _takes(self, x: Tensor) -> bool:
        fits = x.dtype in library.TYPES and x.is_cpu and not x.requires_grad and not library.is_traced()
        return fits and kernel() is not None

    def _run(
        self,
        kind: int,
        x: int,
        step: int,
        base: int | None,
        apart: int,
        out_kind: int,
        out: int,
        out_step: int,
        count: int,
    ) -> None:
        rows, length = self.shape
        weights, threads = (self.packed.data_ptr(), self.scale.data_ptr()), library.threads(count * rows * length)
        to = out_kind, out, out_step, count, rows, length, threads
        if kernel()(kind, x, step, *weights, base, apart, *to):
            raise MemoryError(f"no memory for a matmul of {count} rows of {length}")


def _by_rows(x: Tensor, length: int) -> Tensor:
    """x [..., K] as [M, K], each row contiguous."""
    flat = x.reshape(-1, length)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def quantized(weight: Tensor) -> Int8Weight:
    """A matrix [N, K] of finite weights, rounded to 8 bits."""
    rows, columns = weight.shape
    wide = torch.full((-(-rows // WIDTH) * WIDTH, -(-columns // EACH) * EACH), 128, dtype=torch.uint8)
    scale = torch.zeros(len(wide))
    scale[:rows] = weight.float().abs().amax(1) / 127
    wide[:rows, :columns] = (weight / scale[:rows, None].clamp(min=torch.finfo().tiny)).round_() + 128
    packed = wide.view(-1, WIDTH, wide.shape[1] // EACH, EACH).transpose(1, 2).contiguous()
    return Int8Weight(packed, scale, rows, columns, weight.dtype)


def runs() -> bool:
    """Whether the processor multiplies bytes, and the kernel could be compiled and may be chosen."""
    return library.allowed() and _able()


@cache
def _able() -> bool:
    able = library.kernel(_FILE, "pardec_multiplies_int8", ())
    return able is not None and bool(able())


def kernel() -> Any:
    """The compiled matmul; None where it does not run."""
    return library.kernel(_FILE, "pardec_int8", _ARGUMENTS) if runs() else None
