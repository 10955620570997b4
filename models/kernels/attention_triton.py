"""Position-addressed attention in Triton: one program per block of queries and head, over the slots of one cache row.

The pattern is read from positions and lengths, so no mask is made for bidirectional, causal and block-causal plans, and
slots at or past a row's length are never loaded. Softmax runs online, in float32 whatever the inputs are.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import interpreted

if TYPE_CHECKING:
    from .sight import Sight

_BIDIRECTIONAL, _CAUSAL, _SEGMENTS, _MASK = range(4)


@triton.jit
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    positions_ptr,  # [B, Q]
    lengths_ptr,  # [B]
    rows_ptr,  # [B], read if HAS_ROWS
    allowed_ptr,  # [B, Q, S], read if KIND is _MASK
    queries,
    extent,
    block,
    scale,
    q_b,
    q_q,
    q_h,
    k_r,
    k_s,
    k_h,
    v_r,
    v_s,
    v_h,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KIND: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_S: tl.constexpr,
    WIDE: tl.constexpr,  # multiply in float32: the interpreter cannot multiply bfloat16
):
    row = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    shared = head // GROUP
    stored = row.to(tl.int64)
    if HAS_ROWS:
        stored = tl.load(rows_ptr + row)
    i = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, D_PAD)
    present = i < queries
    inside = d < D
    both = present[:, None] & inside[None, :]
    q = tl.load(q_ptr + row * q_b + i[:, None] * q_q + head * q_h + d[None, :], mask=both, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    position = tl.load(positions_ptr + row * queries + i, mask=present, other=-1)
    last = tl.minimum(tl.load(lengths_ptr + row), extent)
    if KIND == 1:  # no query of this block sees past its latest position
        last = tl.minimum(last, tl.max(position, 0) + 1)
    top = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_Q], tl.float32)
    total = tl.zeros([BLOCK_Q, D_PAD], tl.float32)
    for start in range(0, last, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        valid = s < last
        k = tl.load(
            k_ptr + stored * k_r + s[None, :] * k_s + shared * k_h + d[:, None],
            mask=valid[None, :] & inside[:, None],
            other=0.0,
        )
        v = tl.load(
            v_ptr + stored * v_r + s[:, None] * v_s + shared * v_h + d[None, :],
            mask=valid[:, None] & inside[None, :],
            other=0.0,
        )
        if WIDE:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        score = tl.dot(q, k, input_precision="ieee") * scale
        sees = valid[None, :] & (position >= 0)[:, None]
        if KIND == 1:
            sees = sees & (s[None, :] <= position[:, None])
        if KIND == 2:
            sees = sees & (s[None, :] // block <= position[:, None] // block)
        if KIND == 3:
            at = allowed_ptr + (row.to(tl.int64) * queries + i[:, None]) * extent + s[None, :]
            sees = sees & (tl.load(at, mask=present[:, None] & valid[None, :], other=0) != 0)
        score = tl.where(sees, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen nothing yet
        weight = tl.exp(score - base[:, None])
        kept = tl.exp(top - base)
        mass = mass * kept + tl.sum(weight, 1)
        total = total * kept[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = higher
    total = total / tl.where(mass == 0.0, 1.0, mass)[:, None]
    at = out_ptr + (row * queries + i[:, None]) * (HEADS * D) + head * D + d[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=both)


def attend_triton(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """`attend` for a sight that carries its pattern: q [B, Q, H, D], k and v [R, >= S, K, D] -> [B, Q, H, D].

    A query that sees nothing (padding) gives zeros. The last dimension of q, k and v has to be contiguous.
    """
    visible, positions, lengths = sight.visible, sight.positions, sight.lengths
    assert visible is not None
    assert positions is not None
    assert lengths is not None
    batch, queries, heads, dim = q.shape
    q, k, v = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
    kind = _MASK
    if sight.allowed is None:
        kind = {"bidirectional": _BIDIRECTIONAL, "causal": _CAUSAL, "segments": _SEGMENTS}[visible.kind]
    out = torch.empty((batch, queries, heads, dim), dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    large = dim <= 64 and q.dtype != torch.float32  # what fits the shared memory of small GPUs
    block_q = 16 if queries <= 16 else 64 if large else 32
    grid = (triton.cdiv(queries, block_q), batch * heads)
    launch: Any = _attend[grid]
    launch(
        q,
        k,
        v,
        out,
        positions.contiguous(),
        lengths.contiguous(),
        sight.rows if sight.rows is not None else lengths,
        sight.allowed.contiguous() if sight.allowed is not None else lengths,
        queries,
        sight.extent,
        visible.block or 1,
        dim**-0.5,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        HEADS=heads,
        GROUP=heads // k.shape[2],
        D=dim,
        D_PAD=max(16, triton.next_power_of_2(dim)),
        KIND=kind,
        HAS_ROWS=sight.rows is not None,
        BLOCK_Q=block_q,
        BLOCK_S=64 if large else 32,
        WIDE=interpreted(),
        num_stages=1 if q.dtype == torch.float32 else 2,
    )
    return out
