"""RMSNorm in Triton, alone or after adding to a residual: one program per row, which is read once."""

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
    added_ptr,  # read if ADDS
    weight_ptr,
    out_ptr,
    sum_ptr,  # written if ADDS
    x_row,
    added_row,
    width,
    eps,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + row * x_row + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(added_ptr + row * added_row + at, mask=inside, other=0.0).to(tl.float32)
        x = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * width + at, x, mask=inside)
        x = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`norm` of x [..., E]."""
    return _launch(x, None, weight, eps)[0]


def add_norm_triton(h: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """h + x [..., E] in h's dtype, and its norm."""
    normed, total = _launch(h, x, weight, eps)
    return total, normed


def _launch(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = _rows(x)
    more = rows if added is None else _rows(added)
    count, width = rows.shape
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    total = out if added is None else torch.empty_like(out)
    if count:
        launch: Any = _norm[(count,)]
        block = triton.next_power_of_2(width)
        warps = min(16, max(1, block // 512))
        sizes, adds = (rows.stride(0), more.stride(0), width), added is not None
        launch(rows, more, weight, out, total, *sizes, eps, ADDS=adds, BLOCK=block, num_warps=warps)
    return out.view(x.shape), total.view(x.shape)


def _rows(x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
