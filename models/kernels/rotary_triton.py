"""Rotary embedding of queries and keys in Triton, with the norms of their heads before and the cache's writes after.

One program has one position and few heads.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..caches.kv_cache import Slots

HeadNorms = tuple[Tensor, Tensor, float]  # the gains [D] of queries and keys, and epsilon

_ENTRIES = 1024  # numbers of a program


@triton.jit
def _rotary(
    qkv_ptr,  # [N, H + 2 K, D]
    cos_ptr,  # [N or 1 batch of Q, R]
    sin_ptr,
    q_ptr,  # [N, H, D]
    k_ptr,  # [slots, K, D]; without a cache [N, K, D]
    v_ptr,  # written if CACHED
    slot_ptr,  # [N], read if CACHED
    q_gain_ptr,  # [D], read if NORMED, as the next one
    k_gain_ptr,
    eps,
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
    BLOCK: tl.constexpr,  # heads of a program
    CACHED: tl.constexpr,
    NORMED: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    row, query = n // queries, n % queries
    d = tl.arange(0, D_PAD)[None, :]
    inside = d < D
    is_query = (head < HEADS) & inside
    is_key = (head >= HEADS) & (head < HEADS + KV) & inside
    is_value = (head >= HEADS + KV) & (head < HEADS + 2 * KV) & inside
    base = qkv_ptr + row * qkv_b + query * qkv_q + head * qkv_h
    rotated = d < R
    other = tl.where(d < R // 2, d + R // 2, d - R // 2)
    at = row * cos_batch + query * cos_query + d
    cos = tl.load(cos_ptr + at, mask=rotated, other=1.0)
    sin = tl.load(sin_ptr + at, mask=rotated, other=0.0)
    x = tl.load(base + d, mask=is_query | is_key | (is_value & CACHED), other=0.0)
    partner = tl.load(base + other, mask=(is_query | is_key) & rotated, other=0.0).to(tl.float32)
    wide = x.to(tl.float32)
    if NORMED:
        scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 1)[:, None] / D + eps)
        q_gain = tl.load(q_gain_ptr + d, mask=inside, other=0.0).to(tl.float32)
        k_gain = tl.load(k_gain_ptr + d, mask=inside, other=0.0).to(tl.float32)
        wide = (wide * scale * tl.where(head < HEADS, q_gain, k_gain)).to(x.dtype).to(tl.float32)  # as two operations
        q_gain = tl.load(q_gain_ptr + other, mask=rotated, other=0.0).to(tl.float32)
        k_gain = tl.load(k_gain_ptr + other, mask=rotated, other=0.0).to(tl.float32)
        partner = (partner * scale * tl.where(head < HEADS, q_gain, k_gain)).to(x.dtype).to(tl.float32)
    out = (wide * cos + partner * sin).to(x.dtype)
    tl.store(q_ptr + (n * HEADS + head) * D + d, out, mask=is_query)
    slot = n
    if CACHED:
        slot = tl.load(slot_ptr + n)
        tl.store(v_ptr + (slot * KV + head - HEADS - KV) * D + d, x, mask=is_value)  # as it is
    tl.store(k_ptr + (slot * KV + head - HEADS) * D + d, out, mask=is_key)


def rotate_triton(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, norms: HeadNorms | None = None
) -> tuple[Tensor, Tensor]:
    """The rotated queries [B, Q, H, D] and keys [B, Q, K, D] of `rotary_and_cache`, without a cache."""
    kv = (qkv.shape[2] - heads) // 2
    k = torch.empty((*qkv.shape[:2], kv, qkv.shape[3]), dtype=qkv.dtype, device=qkv.device)
    return launch_rotary(qkv, cos, sin, heads, k, None, None, norms), k


def rotate_into_triton(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, slots: Slots, layer: int, norms: HeadNorms | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`rotary_and_cache` for a plain cache, without a store."""
    k, v = slots.cache.k[layer], slots.cache.v[layer]
    return launch_rotary(qkv, cos, sin, heads, k, v, slots.flat, norms), k, v


def launch_rotary(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    k: Tensor,
    v: Tensor | None,
    flat: Tensor | None,
    norms: HeadNorms | None = None,
) -> Tensor:
    """The rotated queries; keys go to `k`, and values to `v`, at the slots `flat` [B * Q] where there are any."""
    batch, queries, total, dim = qkv.shape
    kv = (total - heads) // 2
    qkv = qkv if qkv.stride(-1) == 1 else qkv.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    q = torch.empty((batch, queries, heads, dim), dtype=qkv.dtype, device=qkv.device)
    if qkv.numel():
        padded = triton.next_power_of_2(dim)
        block = max(1, min(triton.next_power_of_2(total), _ENTRIES // padded))
        launch: Any = _rotary[(batch * queries, triton.cdiv(total if v is not None else heads + kv, block))]
        launch(
            qkv,
            cos,
            sin,
            q,
            k,
            k if v is None else v,
            q if flat is None else flat,
            *((cos, cos, 0.0) if norms is None else norms),
            queries,
            0 if len(cos) == 1 else cos.stride(0),
            cos.stride(1),
            *qkv.stride()[:3],
            HEADS=heads,
            KV=kv,
            D=dim,
            R=cos.shape[-1],
            D_PAD=padded,
            BLOCK=block,
            CACHED=v is not None,
            NORMED=norms is not None,
            num_warps=4,
        )
    return q
