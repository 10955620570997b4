"""What a forward does in its layers besides the plain stack: for one family, one cache, or one request."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..caches.kv_cache import Slots
from ..caches.readers import Reader
from ..kernels.attention import AttentionPattern, attend
from ..kernels.attention_parts import attend_parts
from .attention_record import AttentionRecord


@dataclass(slots=True)
class Kept:
    """What one forward keeps of its attention besides the states, whatever devices its layers are on."""

    queries: list[Tensor] = field(default_factory=list)  # see `Hidden.queries`
    attention: dict[int, Tensor] = field(default_factory=dict)  # see `Hidden.attention`


@dataclass(slots=True, kw_only=True)
class LayerHooks:
    """The deviations of one forward from the plain stack. A forward that has none carries no such object."""

    skip: frozenset[tuple[int, str]] = frozenset()  # (layer, "attn" | "mlp") sub-blocks left out
    growth: Tensor | None = None  # [B, Q, 1, 1], of queries by their positions
    canvas: Tensor | None = None  # [B * Q, 1] bool: the queries of a canvas that is being denoised
    prefix: AttentionPattern | None = None  # of the cache's shared part; the pass has that of the rows' own slots then
    reader: Reader | None = None  # of a cache that has its own way of being attended to
    last: Tensor | None = None  # [B, n] the queries that are kept
    queries: list[Tensor] = field(default_factory=list)  # these, layer by layer
    record: AttentionRecord | None = None  # where the attention of chosen layers is kept

    def on_queries(self, index: int, q: Tensor, k: Tensor, pattern: AttentionPattern, cap: float | None) -> Tensor:
        """Queries q [B, Q, H, D] as they meet the keys k [R, >= S, K, D]; kept and recorded where that is asked for."""
        if self.growth is not None:
            q = q * self.growth
        if self.last is not None:
            rows = flat_rows(self.last, q.shape[1])
            self.queries.append(q.flatten(0, 1)[rows].view(*self.last.shape, *q.shape[2:]))
        if self.record is not None:
            self.record.add(index, q, k, pattern, cap)
        return q

    def attend(
        self,
        index: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pattern: AttentionPattern,
        cap: float | None,
        slots: Slots | None,
        picked: Tensor | None,
    ) -> Tensor:
        """Attention of q [B, Q, H, D], which are the queries `picked` [B, Q] of a wider forward, or all."""
        if self.reader is not None:
            reader = self.reader if picked is None else self.reader.narrowed(picked)
            return reader.attend(index, q, k, v, pattern, cap)
        if self.prefix is None:
            return attend(q, k, v, pattern, cap)
        assert slots is not None, "a cache has the shared part"
        prefix = self.prefix if picked is None else self.prefix.narrowed(picked)
        return attend_parts(q, (*slots.shared(index), prefix), (k, v, pattern), cap)


def flat_rows(picked: Tensor, width: int) -> Tensor:
    """Indices [B * M] into [B * Q] of the queries `picked` [B, M] of each row."""
    if len(picked) > 1:
        picked = picked + torch.arange(0, len(picked) * width, width, device=picked.device)[:, None]
    return picked.flatten()
