"""Rotary embedding of queries and keys, with keys and values put where a cache keeps them.

    (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of the first R dimensions of a head, in float32

The definition is `rotate` and then `KVCache.write`; Triton's version reads the fused product once and writes each of
the three once.
"""

from __future__ import annotations

from torch import Tensor

from ..rope import rotate
from .choice import Backend


def turn_and_store(
    fused: Tensor,
    cos: Tensor,
    sin: Tensor,
    k: Tensor,
    v: Tensor,
    where: Tensor,
    heads: int,
    chosen: Backend = "reference",
) -> Tensor:
    """Queries [B, Q, H, D], turned; keys, turned, and values go to `k` and `v`.

    Args:
        fused: [B, Q, H + 2 K, D], queries, keys and values of each head.
        cos: [B or 1, Q, 1, R] float32; `sin` the same, with the sign of the half-split.
        k: [rows, slots, K, D], contiguous; `v` alike.
        where: [B * Q] int64: the flat slot (row * slots + slot) that each position's keys and values go to.
        heads: H.
    """
    if chosen == "triton":
        from .rotary_triton import turn_and_store_triton

        return turn_and_store_triton(fused, cos, sin, k, v, where, heads)
    kv = k.shape[2]
    turned = rotate(fused[:, :, : heads + kv], cos, sin)
    k.flatten(0, 1).index_copy_(0, where, turned[:, :, heads:].flatten(0, 1))
    v.flatten(0, 1).index_copy_(0, where, fused[:, :, heads + kv :].flatten(0, 1))
    return turned[:, :, :heads]
