"""Rotary embedding of queries and keys, with keys and values written where a cache keeps them.

    (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of the first R dimensions of a head, in float32

The definition is `apply_rotary` and then `Slots.write`; the versions in C and Triton read the fused projection once and
write each of the three once.
"""

from __future__ import annotations

from torch import Tensor

from ..caches.kv_cache import Slots
from ..layers.rope import apply_rotary
from .cpu.layer import apply_rotary_c


def rotary_and_cache(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, slots: Slots | None, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries [B, Q, H, D], and the keys and values that they attend to, [rows, >= S, K, D] each.

    Args:
        qkv: [B, Q, H + 2 K, D], queries, keys and values of each head.
        cos: [B or 1, Q, 1, R] float32; `sin` the same, with the sign of the half-split.
        heads: H.
        slots: where the cache keeps this forward's keys and values; None: they are not kept, and attend to themselves.
        layer: index of the layer in the cache.
    """
    values = (heads + qkv.shape[2]) // 2  # of H + 2 K: H + K, where values begin
    rotated = apply_rotary(qkv[:, :, :values], cos, sin)
    q, k, v = rotated[:, :, :heads], rotated[:, :, heads:], qkv[:, :, values:]
    return (q, k, v) if slots is None else (q, *slots.write(layer, k, v))


def rotary_and_cache_c(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, slots: Slots | None, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in C where keys and values go to slices of a cache of their dtype, or to none."""
    if slots is None:
        return *apply_rotary_c(qkv, cos, sin, heads, None), qkv[:, :, (heads + qkv.shape[2]) // 2 :]
    if slots.views is None and slots.straight:
        q, k = apply_rotary_c(qkv, cos, sin, heads, None)
        return q, *slots.write(layer, k, qkv[:, :, (heads + qkv.shape[2]) // 2 :])
    if slots.views is None:
        return rotary_and_cache(qkv, cos, sin, heads, slots, layer)
    to_k, to_v, from_k, from_v = slots.views[layer]
    if to_k.dtype != qkv.dtype:
        return rotary_and_cache(qkv, cos, sin, heads, slots, layer)
    q, _ = apply_rotary_c(qkv, cos, sin, heads, (to_k, to_v))
    return q, from_k, from_v
