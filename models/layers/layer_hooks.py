"""Deviations of a forward's layers from the plain stack: for a family, a cache or a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..caches.kv_cache import Reader, Slots
from ..decoder_config import DecoderConfig
from ..errors import CacheError
from ..kernels.attention import AttentionPattern, attend
from ..kernels.attention_parts import attend_parts
from .attention_record import AttentionRecord


@dataclass(slots=True)
class Kept:
    """The queries and attention that one forward keeps, from layers on all devices."""

    queries: list[Tensor] = field(default_factory=list)  # see `Hidden.queries`
    attention: dict[int, Tensor] = field(default_factory=dict)  # see `Hidden.attention`


@dataclass(slots=True, kw_only=True)
class LayerHooks:
    """The deviations of one forward from the plain stack. A forward that has none carries no such object."""

    skip: frozenset[tuple[int, str]] = frozenset()  # (layer, "attn" | "mlp") sub-blocks left out
    growth: Tensor | None = None  # [B, Q, 1, 1] factors of queries by position
    canvas: Tensor | None = None  # [B * Q, 1] bool: the queries of a canvas that is being denoised
    prefix: AttentionPattern | None = None  # over the cache's shared part; `LayerPass`: over each row's own slots
    reader: Reader | None = None  # attends to a cache in place of the kernels
    last: Tensor | None = None  # [B, n] the queries that are kept
    queries: list[Tensor] = field(default_factory=list)  # the kept queries, layer by layer
    record: AttentionRecord | None = None  # where the attention of chosen layers is kept

    def on_queries(self, index: int, q: Tensor, k: Tensor, pattern: AttentionPattern, config: DecoderConfig) -> Tensor:
        """Scales queries q [B, Q, H, D] over keys k [R, >= S, K, D]; keeps and records them where the plan wants it."""
        if self.growth is not None:
            q = q * self.growth
        if self.last is not None:
            rows = flat_rows(self.last, q.shape[1])
            self.queries.append(q.flatten(0, 1)[rows].view(*self.last.shape, *q.shape[2:]))
        if self.record is not None:
            self.record.add(index, q, k, pattern, config.attention_cap, sink=config.attention_sink)
        return q

    def attend(
        self,
        index: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pattern: AttentionPattern,
        config: DecoderConfig,
        slots: Slots | None,
        picked: Tensor | None,
    ) -> Tensor:
        """Attention of q [B, Q, H, D]: the queries `picked` [B, Q] of a wider forward, or all queries."""
        cap, sink = config.attention_cap, config.attention_sink
        if sink and (self.reader is not None or self.prefix is not None):
            raise CacheError(
                "attention with a sink runs only with a plain cache, and this one has its own reader or a shared part",
                "make a plain one: new_cache(batch, capacity)",
            )
        if self.reader is not None:
            reader = self.reader if picked is None else self.reader.narrowed(picked)
            return reader.attend(index, q, k, v, pattern, cap)
        if self.prefix is None:
            return attend(q, k, v, pattern, cap, sink=sink)
        assert slots is not None, "a cache has the shared part"
        prefix = self.prefix if picked is None else self.prefix.narrowed(picked)
        return attend_parts(q, (*slots.shared(index), prefix), (k, v, pattern), cap)


def flat_rows(picked: Tensor, width: int) -> Tensor:
    """Indices [B * M] into [B * Q] of the queries `picked` [B, M] of each row."""
    if len(picked) > 1:
        picked = picked + torch.arange(0, len(picked) * width, width, device=picked.device)[:, None]
    return picked.flatten()
