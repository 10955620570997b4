"""The exact test of ragged chains in Triton, and the next token: one program per row, no residual is stored.

A row's nodes are tested at once. Its next token is sampled by the inverse CDF in float64; the weights, [p - q]+, p
without a token, or p, are computed while they are read. They are read twice, for their sum and for the sample.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _judge(
    tokens_ptr,  # [B, T]
    tested_ptr,  # [B, T] int8
    point_ptr,  # [B, T] int8, read if HAS_POINT
    p_ptr,  # [B, T, V]
    q_ptr,  # [B, T, V], read if HAS_Q
    u_ptr,  # [B, T] float64
    next_u_ptr,  # [B] float64
    count_ptr,  # [B]
    next_ptr,  # [B]
    ratio_ptr,  # [B, T]
    nodes,
    vocab,
    p_b,
    p_t,
    q_b,
    q_t,
    nothing,
    HAS_Q: tl.constexpr,
    HAS_POINT: tl.constexpr,
    T_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, T_PAD)
    real = (node > 0) & (node < nodes)
    token = tl.load(tokens_ptr + row * nodes + node, mask=real, other=0)
    tested = tl.load(tested_ptr + row * nodes + node, mask=real, other=0) != 0
    u = tl.load(u_ptr + row * nodes + node, mask=real, other=1.0)
    target_prob = tl.load(p_ptr + row * p_b + (node - 1).to(tl.int64) * p_t + token, mask=real & tested, other=0.0)
    draft_prob = tl.full([T_PAD], 1.0, tl.float32)
    sampled = node < 0  # sampled from a distribution
    if HAS_Q:
        sampled = real
        if HAS_POINT:
            sampled = sampled & (tl.load(point_ptr + row * nodes + node, mask=real, other=0) == 0)
        draft_prob = tl.load(q_ptr + row * q_b + node.to(tl.int64) * q_t + token, mask=sampled & tested, other=1.0)
    accepted = tested & (u * draft_prob.to(tl.float64) < target_prob.to(tl.float64))
    stop = tl.min(tl.where((node == 0) | accepted, nodes, tl.minimum(node, nodes)), 0)  # the first that is not accepted
    tl.store(count_ptr + row, (stop - 1).to(tl.int64))
    accept_prob = tl.minimum(target_prob / tl.maximum(draft_prob, nothing), 1.0)
    accept_prob = tl.where(tested & (node <= stop), accept_prob, 0.0)
    tl.store(ratio_ptr + row * nodes + node, accept_prob.to(ratio_ptr.dtype.element_ty), mask=node < nodes)

    at_stop = (node == stop) & tested
    minus_q = tl.max((at_stop & sampled).to(tl.int32), 0)  # 1: a sampled token was rejected: [p - q]+ remains
    without_token = tl.max(at_stop.to(tl.int32), 0) - minus_q  # 1: a point mass was rejected: p without it remains
    rejected = tl.sum(tl.where(at_stop, token, 0), 0)
    distribution = p_ptr + row * p_b + (stop - 1).to(tl.int64) * p_t
    q_rows = q_ptr
    if HAS_Q:
        q_rows = q_ptr + row * q_b + tl.minimum(stop, nodes - 1).to(tl.int64) * q_t
    highest = tl.full([], 0.0, tl.float64)
    total = tl.full([], 0.0, tl.float64)
    whole = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        p = tl.load(distribution + at, mask=at < vocab, other=0.0)
        left = tl.where((at == rejected) & (without_token != 0), 0.0, p)
        if HAS_Q:
            left = tl.maximum(left - tl.load(q_rows + at, mask=at < vocab * minus_q, other=0.0), 0.0)
        highest = tl.maximum(highest, tl.max(left, 0).to(tl.float64))
        total += tl.sum(left.to(tl.float64), 0)
        whole += tl.sum(p.to(tl.float64), 0)
    some = highest > nothing  # else p equals q, or p has no other token: sample from p
    target = tl.load(next_u_ptr + row) * tl.where(some, total, whole)
    before = tl.full([], 0.0, tl.float64)
    index = vocab + tl.full([], 0, tl.int32)
    latest = tl.full([], 0, tl.int32)
    start = tl.full([], 0, tl.int32)
    while (start < vocab) & (index == vocab):
        at = start + tl.arange(0, BLOCK)
        p = tl.load(distribution + at, mask=at < vocab, other=0.0)
        left = tl.where((at == rejected) & (without_token != 0), 0.0, p)
        if HAS_Q:
            left = tl.maximum(left - tl.load(q_rows + at, mask=at < vocab * minus_q, other=0.0), 0.0)
        weight = tl.where(some, left, p).to(tl.float64)
        mass = before + tl.cumsum(weight, 0)
        index = tl.minimum(index, tl.min(tl.where((mass > target) & (weight > 0), at, vocab), 0))
        latest = tl.maximum(latest, tl.max(tl.where(weight > 0, at, 0), 0))
        before += tl.sum(weight, 0)
        start += BLOCK
    # The last token of positive weight is taken where rounding leaves a remainder.
    tl.store(next_ptr + row, tl.where(index == vocab, latest, index).to(tl.int64))


def judge_chains(
    tokens: Tensor, tested: Tensor, p: Tensor, q: Tensor | None, point: Tensor | None, u: Tensor, next_u: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Per chain the accepted nodes [B] and next token [B], and each tested node's acceptance probability [B, T].

    Args:
        tokens: [B, T], node 0 first; `tested` and `point` [B, T] bool, as a draft has them.
        p: [B, T, V] the target's distribution after each node; `q` what each was sampled from, or None.
        u: [B, T] float64 uniforms of the tests; `next_u` [B] of the next token.
    """
    batch, nodes, vocab = p.shape
    p = p if p.stride(-1) == 1 else p.contiguous()
    q_rows = p if q is None else q if q.stride(-1) == 1 else q.contiguous()
    count, following = torch.empty((2, batch), dtype=torch.int64, device=p.device)
    ratio = torch.empty((batch, nodes), dtype=p.dtype, device=p.device)
    tested_bytes = tested.to(torch.int8).contiguous()
    if batch:
        launch: Any = _judge[(batch,)]
        launch(
            tokens.contiguous(),
            tested_bytes,
            tested_bytes if point is None else point.to(torch.int8).contiguous(),
            p,
            q_rows,
            u.contiguous(),
            next_u.contiguous(),
            count,
            following,
            ratio,
            nodes,
            vocab,
            *p.stride()[:2],
            *q_rows.stride()[:2],
            1e-12,
            HAS_Q=q is not None,
            HAS_POINT=point is not None,
            T_PAD=triton.next_power_of_2(nodes),
            BLOCK=min(4096, triton.next_power_of_2(vocab)),
            num_warps=8,
        )
    return count, following, ratio
