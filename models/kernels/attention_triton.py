"""Position-addressed attention in Triton: one program per block of queries and key head, over slots of one cache row.

The pattern is read from positions, lengths and a tree's parents, so no mask is made for bidirectional, causal and
block-causal plans and for tree drafts, and slots at or past a row's length are never loaded. The query heads that share
a key head stand in one block, so that keys and values are read once for all of them. Softmax runs online, in float32
whatever the inputs are.

A small window would leave most of a GPU idle: the slots of a row are then split into parts, two waves of programs for
132 processors at a batch of one, and a second kernel puts together what they found (flash-decoding),

    out = sum_p exp(top_p - top) total_p / sum_p exp(top_p - top) mass_p,    top = max_p top_p

Dao, Haziza, Massa and Sizov, https://crfm.stanford.edu/2023/10/12/flashdecoding.html. The number of parts depends on a
row's queries and heads and their width on its length, never on the batch, and parts without a slot weigh nothing: a row
alone adds up what it adds up in a batch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .choice import architecture, interpreted

_BIDIRECTIONAL, _CAUSAL, _SEGMENTS, _MASK, _TREE = range(5)
_SHORT = 256  # slots are split where queries times heads per key head are at most this
_PROGRAMS = 264  # at least, over `_USUAL` slots: two for each of an H100's processors
_USUAL = 480  # slots
_NARROWEST = 16  # slots of a part are a multiple of it
_CHUNK = 16  # parts that are put together at once


class Tile(NamedTuple):
    """The tile that a program computes at once."""

    queries: int  # times heads per key head
    slots: int
    warps: int = 4
    stages: int = 2


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
    parts,  # P
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
    length = tl.minimum(tl.load(lengths_ptr + row), extent).to(tl.int32)
    last = length
    reach = position + 1  # the first slot that a query does not see; outside the loop, where a division is cheaper
    if KIND == 2:
        reach = (position // block + 1) * block
    if KIND == 1 or KIND == 2:
        last = tl.minimum(last, tl.max(reach, 0))
    first = 0
    if SPLITS:
        width = tl.cdiv(tl.cdiv(length, parts), 16) * 16
        first = tl.program_id(2) * width
        last = tl.minimum(last, first + width)
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
    CHUNK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0).to(tl.int64)
    d = tl.arange(0, D_PAD)
    top = float("-inf")
    for start in range(0, parts, CHUNK):
        part = start + tl.arange(0, CHUNK)
        tops = tl.load(top_ptr + part * count + n, mask=part < parts, other=float("-inf"))
        top = tl.maximum(top, tl.max(tops, 0))
    top = tl.where(top == float("-inf"), 0.0, top)
    mass = 0.0
    total = tl.zeros([D_PAD], tl.float32)
    for start in range(0, parts, CHUNK):
        part = start + tl.arange(0, CHUNK)
        at, some = part * count + n, part < parts
        share = tl.exp(tl.load(top_ptr + at, mask=some, other=float("-inf")) - top)
        mass += tl.sum(tl.load(mass_ptr + at, mask=some, other=0.0) * share, 0)
        both = some[:, None] & (d < D)[None, :]
        totals = tl.load(total_ptr + at[:, None] * D + d[None, :], mask=both, other=0.0)
        total += tl.sum(totals * share[:, None], 0)
    total = total / tl.where(mass == 0.0, 1.0, mass)
    tl.store(out_ptr + n * D + d, total.to(out_ptr.dtype.element_ty), mask=d < D)


def attend_triton(q: Tensor, k: Tensor, v: Tensor, pattern: Any, *, parts: int | None = None) -> Tensor:
    """`attend` for an `AttentionPattern` that follows the plan's `Visible`: q [B, Q, H, D] -> [B, Q, H, D].

    k and v are [R, >= S, K, D].

    A query that sees nothing (padding) gives zeros. The last dimension of q, k and v has to be contiguous, or is made
    so. `parts` is the number of parts that each row's slots are split into; None decides by the shapes.
    """
    visible, positions, lengths = pattern.visible, pattern.positions, pattern.lengths
    assert visible is not None
    assert positions is not None
    assert lengths is not None
    kind, parents, base, nodes = _MASK, None, None, None
    if pattern.nodes is not None and visible.parents is not None and visible.base is not None:
        kind, parents, base, nodes = _TREE, visible.parents, visible.base, pattern.nodes
    elif pattern.allowed is None:
        kind = {"bidirectional": _BIDIRECTIONAL, "causal": _CAUSAL, "segments": _SEGMENTS}[visible.kind]
    found = positions, lengths, pattern.rows, pattern.allowed, parents, base, nodes, kind, pattern.extent
    if torch.compiler.is_compiling():
        out: Tensor = torch.ops.pardec.attention(q, k, v, *found, visible.block or 1)
        return out
    return run_attention(q, k, v, *found, visible.block or 1, parts)


def run_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    lengths: Tensor,
    rows: Tensor | None,
    allowed: Tensor | None,
    parents: Tensor | None,
    base: Tensor | None,
    nodes: Tensor | None,
    kind: int,
    extent: int,
    block: int,
    parts: int | None = None,
) -> Tensor:
    """`attend_triton` of the fields of a pattern."""
    batch, queries, heads, dim = q.shape
    kv = k.shape[2]
    q, k, v = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
    lengths = lengths.contiguous()
    parents = lengths if parents is None else parents.contiguous()
    out = torch.empty((batch, queries, heads, dim), dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    stacked = queries * (heads // kv)  # queries before one key head
    tile = tile_of(stacked, dim, kind, q.dtype)
    blocks = triton.cdiv(stacked, tile.queries)
    if parts is None:
        parts = parts_of(stacked, blocks * kv)
    stored = min(parts, triton.cdiv(extent, _NARROWEST))  # later parts have no slot
    partial, top, mass = out, out, out
    if parts > 1:
        partial = torch.empty((stored, *out.shape), dtype=torch.float32, device=q.device)
        top, mass = torch.empty((2, stored, batch, queries, heads), dtype=torch.float32, device=q.device)
    launch: Any = _attend[(blocks, batch * kv, stored)]
    launch(
        q,
        k,
        v,
        partial,
        top,
        mass,
        positions.contiguous(),
        lengths,
        lengths if rows is None else rows,
        lengths if allowed is None else allowed.contiguous(),
        parents,
        lengths if base is None else base.contiguous(),
        lengths if nodes is None else nodes.contiguous(),
        queries,
        extent,
        block,
        parents.shape[-1],
        parents.shape[-1] if parents.dim() == 2 else 0,
        parts,
        dim**-0.5,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        KV=kv,
        GROUP=heads // kv,
        D=dim,
        D_PAD=max(16, triton.next_power_of_2(dim)),
        KIND=kind,
        HAS_ROWS=rows is not None,
        SPLITS=parts > 1,
        BLOCK_Q=tile.queries,
        BLOCK_S=tile.slots,
        WIDE=interpreted(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if parts > 1:
        combine: Any = _combine[(batch * queries * heads,)]
        combine(partial, top, mass, out, stored, D=dim, D_PAD=triton.next_power_of_2(dim), CHUNK=_CHUNK, num_warps=2)
    return out


def parts_of(stacked: int, programs: int) -> int:
    """The number of parts into which a row's slots are split, given the `programs` without parts.

    `stacked` is the number of queries times the query heads per key head.
    """
    if stacked > _SHORT or programs >= _PROGRAMS:
        return 1
    width = _USUAL // triton.cdiv(_PROGRAMS, programs) // _NARROWEST * _NARROWEST
    parts: int = triton.cdiv(_USUAL, max(width, _NARROWEST))
    return parts


def tile_of(stacked: int, dim: int, kind: int, dtype: torch.dtype) -> Tile:
    """The tile for `stacked` queries times query heads per key head, of `dim` dimensions each."""
    few = 16 if stacked <= 16 else 32
    if dtype == torch.float32:
        return Tile(few, 32, stages=1)
    roomy = architecture() >= 90  # shared memory for wide tiles
    if kind in (_MASK, _TREE) or not roomy or dim > 128:  # they need registers for what they read beside
        return Tile(few if stacked <= 32 or dim > 64 else 64, 64 if dim <= 64 else 32)
    if stacked <= _SHORT:
        return Tile(few if stacked <= 32 else 64, 64)
    return Tile(128, 128 if kind == _BIDIRECTIONAL or dim <= 64 else 64, warps=8)
