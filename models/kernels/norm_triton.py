"""RMSNorm in Triton: one program per row, which is read once."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm(x_ptr, weight_ptr, out_ptr, x_row, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + row * x_row + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`norm` of x [..., E]."""
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    count, width = rows.shape
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if count:
        launch: Any = _norm[(count,)]
        block = triton.next_power_of_2(width)
        launch(rows, weight, out, rows.stride(0), width, eps, BLOCK=block, num_warps=min(16, max(1, block // 512)))
    return out.view(x.shape)
