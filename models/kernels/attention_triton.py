"""Position-addressed attention in Triton: one program per block of queries and key head, over slots of one cache row.

The pattern is read from positions, lengths and a tree's parents, so no mask is made for bidirectional, causal and
block-causal plans and for tree drafts, and slots at or past a row's length are never loaded. The query heads that share
a key head stand in one block, so that keys and values are read once for all of them. Softmax runs online, in float32
whatever the inputs are.

Short queries over many slots would leave most of a GPU idle: the slots are then split, every part has programs of its
own, and a second kernel puts together what they found,

    out = sum_p exp(top_p - top) total_p / sum_p exp(top_p - top) mass_p,    top = max_p top_p

How wide a part is depends on the queries and heads of a row alone, never on the batch, and parts without a slot weigh
nothing: a row alone adds up what it adds up in a batch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import interpreted

_BIDIRECTIONAL, _CAUSAL, _SEGMENTS, _MASK, _TREE = range(5)
_SHORT = 64  # slots are split where queries times heads per key head are at most this


@triton.jit
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,  # [B, Q, H, D]; if SPLITS: [P, B, Q, H, D] float32, the sum of each part
    top_ptr,  # [P, B, Q, H] float32, written if SPLITS: the highest score of each part
    mass_ptr,  # [P, B, Q, H] float32, written if SPLITS
    positions_ptr,  # [B, Q]
    lengths_ptr,  # [B]
    rows_ptr,  # [B], read if HAS_ROWS
    allowed_ptr,  # [B, Q, S], read if KIND is _MASK
    parents_ptr,  # [T] or [B, T], read if KIND is _TREE
    base_ptr,  # [B], read if KIND is _TREE
    nodes_ptr,  # [B, Q], read if KIND is _TREE: the node that each query is
    queries,
    extent,
    block,
    tree,  # nodes T
    parents_b,
    split,  # slots of a part
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
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KIND: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_S: tl.constexpr,
    WIDE: tl.constexpr,  # multiply in float32: the interpreter cannot multiply bfloat16
):
    row = (tl.program_id(1) // KV).to(tl.int64)
    shared = tl.program_id(1) % KV
    stored = row
    if HAS_ROWS:
        stored = tl.load(rows_ptr + row)
    m = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    i = m // GROUP
    head = shared * GROUP + m % GROUP
    d = tl.arange(0, D_PAD)
    present = i < queries
    inside = d < D
    both = present[:, None] & inside[None, :]
    q = tl.load(q_ptr + row * q_b + i[:, None] * q_q + head[:, None] * q_h + d[None, :], mask=both, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    position = tl.load(positions_ptr + row * queries + i, mask=present, other=-1)
    last = tl.minimum(tl.load(lengths_ptr + row), extent)
    reach = position + 1  # the first slot that a query does not see; outside the loop, where a division is cheaper
    if KIND == 2:
        reach = (position // block + 1) * block
    if KIND == 1 or KIND == 2:
        last = tl.minimum(last, tl.max(reach, 0))
    first = 0
    if SPLITS:
        first = tl.program_id(2) * split
        last = tl.minimum(last, first + split)
    if KIND == 4:
        base = tl.load(base_ptr + row)
        own = tl.load(nodes_ptr + row * queries + i, mask=present & (position >= 0), other=-1)
    top = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_Q], tl.float32)
    total = tl.zeros([BLOCK_Q, D_PAD], tl.float32)
    for start in range(first, last, BLOCK_S):
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
        if KIND == 1 or KIND == 2:
            sees = sees & (s[None, :] < reach[:, None])
        if KIND == 3:
            at = allowed_ptr + (row * queries + i[:, None]) * extent + s[None, :]
            sees = sees & (tl.load(at, mask=present[:, None] & valid[None, :], other=0) != 0)
        if KIND == 4:
            rank = s - base
            along = (rank < 0)[None, :] & present[:, None]
            # From each query's node to its ancestors: parents come before children, so the walk ends below this block.
            node = tl.where(start + BLOCK_S > base, own, -1)
            lowest = tl.maximum(start - base, 0)
            while tl.max(node, 0) >= lowest:
                along = along | ((rank[None, :] == node[:, None]) & (node >= 0)[:, None])
                on = (node >= 0) & (node < tree)
                above = tl.load(parents_ptr + row * parents_b + node, mask=on, other=-1)
                node = tl.minimum(above, node - 1)
            sees = sees & along
        score = tl.where(sees, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen no slot yet
        weight = tl.exp(score - level[:, None])
        correction = tl.exp(top - level)
        mass = mass * correction + tl.sum(weight, 1)
        total = total * correction[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = higher
    offset = (row * queries + i) * (KV * GROUP) + head
    if SPLITS:
        offset += tl.program_id(2) * (tl.num_programs(1) // KV).to(tl.int64) * queries * (KV * GROUP)
        tl.store(top_ptr + offset, top, mask=present)
        tl.store(mass_ptr + offset, mass, mask=present)
    else:
        total = total / tl.where(mass == 0.0, 1.0, mass)[:, None]
    tl.store(out_ptr + offset[:, None] * D + d[None, :], total.to(out_ptr.dtype.element_ty), mask=both)


@triton.jit
def _combine(
    total_ptr,  # [P, N, D]
    top_ptr,  # [P, N]
    mass_ptr,  # [P, N]
    out_ptr,  # [N, D]
    parts,  # P
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0).to(tl.int64)
    d = tl.arange(0, D_PAD)
    top = float("-inf")
    mass = 0.0
    total = tl.zeros([D_PAD], tl.float32)
    for part in range(parts):
        at = part * count + n
        new = tl.load(top_ptr + at)
        higher = tl.maximum(top, new)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        correction = tl.exp(top - level)
        added = tl.exp(new - level)
        mass = mass * correction + tl.load(mass_ptr + at) * added
        total = total * correction + tl.load(total_ptr + at * D + d, mask=d < D, other=0.0) * added
        top = higher
    total = total / tl.where(mass == 0.0, 1.0, mass)
    tl.store(out_ptr + n * D + d, total.to(out_ptr.dtype.element_ty), mask=d < D)


def attend_triton(q: Tensor, k: Tensor, v: Tensor, pattern: Any, *, split: int | None = None) -> Tensor:
    """`attend` for an `AttentionPattern` with the plan's own rule: q [B, Q, H, D] -> [B, Q, H, D].

    k and v are [R, >= S, K, D].

    A query that sees nothing (padding) gives zeros. The last dimension of q, k and v has to be contiguous, or is made
    so. `split` is how many slots are read by one program, every so many a part; None decides by the shapes, 0 never
    splits.
    """
    visible, positions, lengths = pattern.visible, pattern.positions, pattern.lengths
    assert visible is not None
    assert positions is not None
    assert lengths is not None
    batch, queries, heads, dim = q.shape
    kv = k.shape[2]
    q, k, v = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
    kind, parents, base, nodes = _MASK, lengths, lengths, lengths
    if pattern.nodes is not None and visible.parents is not None and visible.base is not None:
        kind, nodes = _TREE, pattern.nodes.contiguous()
        parents, base = visible.parents.contiguous(), visible.base.contiguous()
    elif pattern.allowed is None:
        kind = {"bidirectional": _BIDIRECTIONAL, "causal": _CAUSAL, "segments": _SEGMENTS}[visible.kind]
    out = torch.empty((batch, queries, heads, dim), dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    stacked = queries * (heads // kv)  # queries before one key head
    large = dim <= 64 and q.dtype != torch.float32  # fits the shared memory of small GPUs
    block_q = 16 if stacked <= 16 else 64 if large else 32
    if split is None:
        split = parts_of(stacked)
    parts = triton.cdiv(pattern.extent, split) if split else 1
    partial, top, mass = out, out, out
    if parts > 1:
        partial = torch.empty((parts, *out.shape), dtype=torch.float32, device=q.device)
        top, mass = torch.empty((2, parts, batch, queries, heads), dtype=torch.float32, device=q.device)
    launch: Any = _attend[(triton.cdiv(stacked, block_q), batch * kv, parts)]
    launch(
        q,
        k,
        v,
        partial,
        top,
        mass,
        positions.contiguous(),
        lengths.contiguous(),
        pattern.rows if pattern.rows is not None else lengths,
        pattern.allowed.contiguous() if pattern.allowed is not None else lengths,
        parents,
        base,
        nodes,
        queries,
        pattern.extent,
        visible.block or 1,
        parents.shape[-1],
        parents.shape[-1] if parents.dim() == 2 else 0,
        split,
        dim**-0.5,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        KV=kv,
        GROUP=heads // kv,
        D=dim,
        D_PAD=max(16, triton.next_power_of_2(dim)),
        KIND=kind,
        HAS_ROWS=pattern.rows is not None,
        SPLITS=parts > 1,
        BLOCK_Q=block_q,
        BLOCK_S=64 if large else 32,
        WIDE=interpreted(),
        num_stages=1 if q.dtype == torch.float32 else 2,
    )
    if parts > 1:
        combine: Any = _combine[(batch * queries * heads,)]
        combine(partial, top, mass, out, parts, D=dim, D_PAD=triton.next_power_of_2(dim), num_warps=1)
    return out


def parts_of(stacked: int) -> int:
    """The number of slots per program, for `stacked` queries times heads per key head; 0: all slots.

    A part's sums are written and read once more, in float32: with 16 slots for each of them that stays an eighth of
    what reading its keys and values in 16 bits costs, or less.
    """
    return 0 if stacked > _SHORT else 16 * max(16, triton.next_power_of_2(stacked))
