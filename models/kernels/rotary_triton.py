"""Rotary embedding and the cache's writes in Triton: one program a position and head of the fused product."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _turn(
    fused_ptr,  # [N, H + 2 K, D]
    cos_ptr,  # [N or 1 batch of Q, R]
    sin_ptr,
    q_ptr,  # [N, H, D]
    k_ptr,  # [slots, K, D]
    v_ptr,
    where_ptr,  # [N]
    queries,
    cos_batch,
    cos_query,
    fused_b,
    fused_q,
    fused_h,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    D_PAD: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row, query = n // queries, n % queries
    d = tl.arange(0, D_PAD)
    inside = d < D
    base = fused_ptr + row * fused_b + query * fused_q + head * fused_h
    x = tl.load(base + d, mask=inside, other=0.0)
    slot = tl.load(where_ptr + n)
    if head >= HEADS + KV:  # a value: kept as it is
        tl.store(v_ptr + (slot * KV + head - HEADS - KV) * D + d, x, mask=inside)
    else:
        turned = d < R
        other = tl.where(d < R // 2, d + R // 2, d - R // 2)
        partner = tl.load(base + other, mask=inside & turned, other=0.0).to(tl.float32)
        at = row * cos_batch + query * cos_query + d
        cos = tl.load(cos_ptr + at, mask=turned, other=1.0)
        sin = tl.load(sin_ptr + at, mask=turned, other=0.0)
        out = (x.to(tl.float32) * cos + partner * sin).to(x.dtype)
        if head < HEADS:
            tl.store(q_ptr + (n * HEADS + head) * D + d, out, mask=inside)
        else:
            tl.store(k_ptr + (slot * KV + head - HEADS) * D + d, out, mask=inside)


def turn_and_store_triton(
    fused: Tensor, cos: Tensor, sin: Tensor, k: Tensor, v: Tensor, where: Tensor, heads: int
) -> Tensor:
    """`turn_and_store`; arguments as there."""
    batch, queries, every, dim = fused.shape
    fused = fused if fused.stride(-1) == 1 else fused.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    q = torch.empty((batch, queries, heads, dim), dtype=fused.dtype, device=fused.device)
    if fused.numel():
        launch: Any = _turn[(batch * queries, every)]
        launch(
            fused,
            cos,
            sin,
            q,
            k,
            v,
            where,
            queries,
            0 if len(cos) == 1 else cos.stride(0),
            cos.stride(1),
            *fused.stride()[:3],
            HEADS=heads,
            KV=k.shape[2],
            D=dim,
            R=cos.shape[-1],
            D_PAD=triton.next_power_of_2(dim),
            num_warps=1,
        )
    return q
