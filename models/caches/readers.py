"""Readers attend to a cache in place of the kernels; each serves one forward."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..kernels.attention import AttentionPattern, additive_mask, visible_rows


class Reader(ABC):
    """One forward's attention to a cache."""

    def narrowed(self, picked: Tensor) -> Reader:
        """The reader for the queries `picked` [B, M] alone."""
        return self

    @abstractmethod
    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
    ) -> Tensor:
        """Attention of q [B, Q, H, D] over k, v [R, >= S, K, D], as `Slots.write` returned them -> [B, Q, H, D].

        `pattern` is what each query may see; a reader leaves out more of it. Caches with readers are not for models
        with a `cap`, which is None.
        """


def attend_hidden(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, hidden: Tensor) -> Tensor:
    """`attend` by the definition, without the slots `hidden`.

    Args:
        q: [B, Q, H, D].
        k: [R, >= S, K, D]; v the same.
        pattern: what is visible besides.
        hidden: [B, N, K] or [B, N, K, Q] bool, of the first N <= S slots; K may be 1, for all heads.
    """
    k, v = visible_rows(k, pattern), visible_rows(v, pattern)
    kv, slots, queries = k.shape[2], k.shape[1], q.shape[1]
    if hidden.dim() == 3:
        hidden = hidden[..., None]
    gone = F.pad(rearrange(hidden, "b n k q -> b k q n"), (0, slots - hidden.shape[1]))
    gone = gone.expand(-1, kv, queries, -1)
    added = q.new_zeros(gone.shape).masked_fill_(gone, float("-inf"))
    mask = additive_mask(pattern, queries, slots, q.dtype, q.device)
    added = added if mask is None else added + mask
    # A masked weight is 0, but 0 * NaN is NaN: slots that no query of a head sees are set to 0.
    dead = rearrange((added == float("-inf")).all(2), "b k s -> b s k 1")
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.masked_fill(dead, 0).transpose(1, 2),
        v.masked_fill(dead, 0).transpose(1, 2),
        attn_mask=added.repeat_interleave(q.shape[2] // kv, 1),
        enable_gqa=q.shape[2] != kv,
    )
    return out.transpose(1, 2)
