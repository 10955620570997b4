"""Matmuls of a layer in Triton that compute what comes before and after them: RMSNorm, and the gate of SwiGLU.

    normed_matmul  norm(x) @ W.T (+ b);   norm(x) = x g / sqrt(mean(x^2) + eps)
    swiglu_matmul  silu(gate) * up of the halves of norm(x) @ W.T (+ b), or of x @ W.T (+ b) without a norm

A norm's factor per row is found while the row is read for the matmul, whose sums are multiplied by it at the end; only
x g is rounded before. Gate and up are rounded where two operations would round them.

Each weight is read once for up to 64 rows, which is what such a matmul's time is; more rows take wide tiles.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import architecture, interpreted

FEW = 64  # rows of which one program computes all
_PROGRAMS = 264  # two for each of an H100's processors


class Tile(NamedTuple):
    """The tile of a program: rows of x, outputs (of a gated matmul: of each half), and entries that are summed."""

    rows: int
    outputs: int
    entries: int
    warps: int
    stages: int


@triton.jit
def _matmul(
    x_ptr,  # [M, K]
    weight_ptr,  # [N, K]; if GATED [2 N, K]
    bias_ptr,  # [N] or [2 N], read if BIASED
    gain_ptr,  # [K], read if NORMED
    out_ptr,  # [M, N]
    rows,  # M
    outputs,  # N
    entries,  # K
    x_row,
    weight_row,
    eps,
    NORMED: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    EVEN: tl.constexpr,  # K is a multiple of BLOCK_K
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WIDE: tl.constexpr,  # multiply in float32: the interpreter cannot multiply bfloat16
):
    blocks = tl.cdiv(rows, BLOCK_M)  # programs of the same weights run side by side
    m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) // blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    some, wanted = m < rows, n < outputs
    # Rows outside repeat row 0, and are not stored: no mask is needed to read them.
    x_at = x_ptr + tl.where(some, m, 0).to(tl.int64)[:, None] * x_row + k[None, :]
    at = tl.where(wanted, n, 0).to(tl.int64)
    weight_at = weight_ptr + at[None, :] * weight_row + k[:, None]
    up_at = weight_ptr + (at + outputs)[None, :] * weight_row + k[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    upper = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, entries, BLOCK_K):
        left = k < entries - start
        x = tl.load(x_at) if EVEN else tl.load(x_at, mask=left[None, :], other=0.0)
        weight = tl.load(weight_at) if EVEN else tl.load(weight_at, mask=left[:, None], other=0.0)
        if NORMED:
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            gain_at = gain_ptr + start + k
            gain = tl.load(gain_at) if EVEN else tl.load(gain_at, mask=left, other=0.0)
            x = (wide * gain.to(tl.float32)[None, :]).to(x.dtype)
        if WIDE:
            x = x.to(tl.float32)
            weight = weight.to(tl.float32)
        total = tl.dot(x, weight, total, input_precision="ieee")
        if GATED:
            up = tl.load(up_at) if EVEN else tl.load(up_at, mask=left[:, None], other=0.0)
            if WIDE:
                up = up.to(tl.float32)
            upper = tl.dot(x, up, upper, input_precision="ieee")
            up_at += BLOCK_K
        x_at += BLOCK_K
        weight_at += BLOCK_K
    if NORMED:
        factor = (1.0 / tl.sqrt(squares / entries + eps))[:, None]
        total = total * factor
        upper = upper * factor
    if BIASED:
        total += tl.load(bias_ptr + n, mask=wanted, other=0.0).to(tl.float32)[None, :]
        if GATED:
            upper += tl.load(bias_ptr + outputs + n, mask=wanted, other=0.0).to(tl.float32)[None, :]
    result = total.to(out_ptr.dtype.element_ty)
    if GATED:
        gate = result.to(tl.float32)
        gate = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty).to(tl.float32)
        upper = upper.to(out_ptr.dtype.element_ty).to(tl.float32)
        result = (gate * upper).to(out_ptr.dtype.element_ty)
    to = out_ptr + m.to(tl.int64)[:, None] * outputs + n[None, :]
    tl.store(to, result, mask=some[:, None] & wanted[None, :])


def normed_matmul(x: Tensor, gain: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """norm(x) [M, K] @ weight [N, K].T (+ bias [N]): [M, N] in x's dtype."""
    return _launch(x, gain, eps, weight, bias, gated=False)


def swiglu_matmul(x: Tensor, gain: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[M, N]: silu(gate) * up, both [M, N], of norm(x) [M, K] @ weight [2 N, K].T (+ bias [2 N])."""
    return _launch(x, gain, eps, weight, bias, gated=True)


def _launch(x: Tensor, gain: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None, *, gated: bool) -> Tensor:
    x, weight = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, weight))
    rows, entries = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if out.numel():
        tile = tile_of(rows, outputs, entries, x.dtype, gated=gated)
        launch: Any = _matmul[(triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs),)]
        launch(
            x,
            weight,
            weight if bias is None else bias,
            weight if gain is None else gain,
            out,
            rows,
            outputs,
            entries,
            x.stride(0),
            weight.stride(0),
            eps,
            NORMED=gain is not None,
            GATED=gated,
            BIASED=bias is not None,
            EVEN=entries % tile.entries == 0,
            BLOCK_M=tile.rows,
            BLOCK_N=tile.outputs,
            BLOCK_K=tile.entries,
            WIDE=interpreted(),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def tile_of(rows: int, outputs: int, entries: int, dtype: torch.dtype, *, gated: bool) -> Tile:
    """The tile for these sizes; few `rows` get one order of additions, and many rows another."""
    padded = max(16, min(FEW, triton.next_power_of_2(rows)))
    if dtype == torch.float32:
        return Tile(min(padded, 32), 32, 32, 4, 2)
    roomy = architecture() >= 90
    if rows > FEW:
        return Tile(128, 128, 64, 8, 3) if roomy and entries % 64 == 0 else Tile(64, 64, 32, 4, 3)
    widest = 64 if roomy else 32
    narrow = next((size for size in (widest, 32) if triton.cdiv(outputs, size) * (2 if gated else 1) >= _PROGRAMS), 16)
    return Tile(padded, narrow, 128 if roomy and not gated else 64, 4, 4 if roomy else 3)
