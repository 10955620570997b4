"""Rotary embedding and the cache's writes in Triton: one program per position and head of the qkv product."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..caches.kv_cache import Slots


@triton.jit
def _rotary(
    qkv_ptr,  # [N, H + 2 K, D]
    cos_ptr,  # [N or 1 batch of Q, R]
    sin_ptr,
    q_ptr,  # [N, H, D]
    k_ptr,  # [slots, K, D]
    v_ptr,
    slot_ptr,  # [N]
    queries,
    cos_batch,
    cos_query,
    qkv_b,
    qkv_q,
    qkv_h,
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
    base = qkv_ptr + row * qkv_b + query * qkv_q + head * qkv_h
    x = tl.load(base + d, mask=inside, other=0.0)
    slot = tl.load(slot_ptr + n)
    if head >= HEADS + KV:  # a value: kept as it is
        tl.store(v_ptr + (slot * KV + head - HEADS - KV) * D + d, x, mask=inside)
    else:
        rotated = d < R
        other = tl.where(d < R // 2, d + R // 2, d - R // 2)
        partner = tl.load(base + other, mask=inside & rotated, other=0.0).to(tl.float32)
        at = row * cos_batch + query * cos_query + d
        cos = tl.load(cos_ptr + at, mask=rotated, other=1.0)
        sin = tl.load(sin_ptr + at, mask=rotated, other=0.0)
        out = (x.to(tl.float32) * cos + partner * sin).to(x.dtype)
        if head < HEADS:
            tl.store(q_ptr + (n * HEADS + head) * D + d, out, mask=inside)
        else:
            tl.store(k_ptr + (slot * KV + head - HEADS) * D + d, out, mask=inside)


def rotate_into_triton(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, slots: Slots, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`rotary_and_cache` for a plain cache, without a store."""
    batch, queries, total, dim = qkv.shape
    k, v = slots.cache.k[layer], slots.cache.v[layer]
    qkv = qkv if qkv.stride(-1) == 1 else qkv.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    q = torch.empty((batch, queries, heads, dim), dtype=qkv.dtype, device=qkv.device)
    if qkv.numel():
        launch: Any = _rotary[(batch * queries, total)]
        launch(
            qkv,
            cos,
            sin,
            q,
            k,
            v,
            slots.flat,
            queries,
            0 if len(cos) == 1 else cos.stride(0),
            cos.stride(1),
            *qkv.stride()[:3],
            HEADS=heads,
            KV=k.shape[2],
            D=dim,
            R=cos.shape[-1],
            D_PAD=triton.next_power_of_2(dim),
            num_warps=1,
        )
    return q, k, v
