"""The gate of a SwiGLU block in Triton: both halves are read once and the result is written once."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _swiglu(gate_up_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up_ptr + row * row_stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + width + at, mask=inside, other=0.0).to(tl.float32)
    gate = gate / (1.0 + tl.exp(-gate))
    # Rounded between the two, as two operations would.
    gate = gate.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * width + at, (gate * up).to(out_ptr.dtype.element_ty), mask=inside)


def swiglu_triton(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [..., M] of `gate_up` [..., 2 M], which is not overwritten."""
    rows = gate_up.reshape(-1, gate_up.shape[-1])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    count, width = rows.shape[0], rows.shape[1] // 2
    out = torch.empty((count, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block = min(1024, triton.next_power_of_2(width))
        launch: Any = _swiglu[(count, triton.cdiv(width, block))]
        launch(rows, out, rows.stride(0), width, BLOCK=block)
    return out.view(*gate_up.shape[:-1], width)
