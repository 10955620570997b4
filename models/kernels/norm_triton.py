"""RMSNorm in Triton: one program a row, which is read once; the residual sum is made on the way."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm(
    x_ptr,
    h_ptr,  # read if ADDS
    weight_ptr,
    out_ptr,
    total_ptr,  # written if ADDS
    x_row,
    h_row,
    width,
    eps,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + row * x_row + at, mask=inside, other=0.0)
    if ADDS:
        h = tl.load(h_ptr + row * h_row + at, mask=inside, other=0.0)
        x = (h.to(tl.float32) + x.to(tl.float32)).to(h.dtype)  # rounded as it is kept
        tl.store(total_ptr + row * width + at, x, mask=inside)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (wide * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`norm` of x [..., E]; rows may lie apart, their numbers may not."""
    rows = _rows(x)
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    _launch(rows, rows, weight, out, out, eps, adds=False)
    return out.view(x.shape)


def add_norm_triton(h: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`add_norm` of h and x [..., E]."""
    held, rows = _rows(h), _rows(x)
    total, out = torch.empty((2, *held.shape), dtype=h.dtype, device=h.device)
    _launch(rows, held, weight, out, total, eps, adds=True)
    return total.view(h.shape), out.view(h.shape)


def _rows(x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _launch(x: Tensor, h: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, *, adds: bool) -> None:
    count, width = x.shape
    if count:
        launch: Any = _norm[(count,)]
        block = triton.next_power_of_2(width)
        warps = min(16, max(1, block // 512))
        strides = x.stride(0), h.stride(0)
        launch(x, h, weight, out, total, *strides, width, eps, ADDS=adds, BLOCK=block, num_warps=warps)
