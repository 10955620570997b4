"""Deviations of a forward's layers from the plain stack: for a family, a cache or a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..caches.kv_cache import Reader, Slots
from ..decoder_config import DecoderConfig
from ..errors import CacheError
from ..kernels.attention import AttentionPattern, attend, read_rows, visible_slots
from ..kernels.attention_parts import attend_parts
from ..plan import Plan


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
                "an attention sink needs a plain cache, and this one has its own reader or a shared part",
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


_BYTES = 1 << 26  # bytes of scores computed at a time


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRecord:
    """Records the attention of chosen queries in chosen layers of one forward, on one device.

        A[i, s] = mean over heads of softmax_s(q_i . k_s / sqrt(D)) over the slots s that query i sees

    In a stack whose softmax has a sink, the weights of a query sum to less than 1: the sink has the rest.

    The kernels never hold these weights. Where a plan asks for them, its layers hand over the queries and keys that the
    kernels are about to read, so that they are those of the same forward, whatever the cache, the norms and the mask.
    """

    layers: frozenset[int]
    queries: Tensor | None  # [B, M], clamped; None: all
    visible: Tensor  # [B, M, S] bool
    weights: dict[int, Tensor]  # layer -> [B, M, S] float32

    @staticmethod
    def of(plan: Plan, extent: int, window: int | None, weights: dict[int, Tensor]) -> AttentionRecord:
        """The record for a plan in the cache's own slots, of which `extent` are read."""
        visible = visible_slots(plan, extent, window) & (plan.positions >= 0)[..., None]
        if plan.attending is None:
            return AttentionRecord(frozenset(plan.attention), None, visible, weights)
        rows = torch.arange(plan.batch, device=visible.device)[:, None]
        queries = plan.attending.clamp(min=0)
        visible = visible[rows, queries] & (plan.attending >= 0)[..., None]
        return AttentionRecord(frozenset(plan.attention), queries, visible, weights)

    def add(
        self, layer: int, q: Tensor, k: Tensor, pattern: AttentionPattern, cap: float | None, *, sink: bool = False
    ) -> None:
        """Keeps the attention of q [B, Q, H, D] over k [R, >= S, K, D], if `layer` is a chosen one."""
        if layer not in self.layers:
            return
        if self.queries is not None:
            q = q[torch.arange(len(q), device=q.device)[:, None], self.queries]
        self.weights[layer] = mean_attention(q, read_rows(k, pattern), self.visible, cap, sink=sink)


def mean_attention(q: Tensor, k: Tensor, visible: Tensor, cap: float | None = None, *, sink: bool = False) -> Tensor:
    """The attention of q [B, M, H, D] over k [B, S, K, D] where `visible` [B, M, S], averaged over heads.

    With `cap`, a score s counts as cap * tanh(s / cap); with `sink`, exponentials are divided by one plus their sum.

    Returns:
        [B, M, S] float32; 0 throughout where a query sees nothing.
    """
    batch, count, heads, dim = q.shape
    keys = rearrange(k.float(), "b s k d -> b k 1 d s")
    most = max(1, _BYTES // max(1, 4 * batch * heads * k.shape[1]))
    parts = []
    for start in range(0, count, most):
        some = rearrange(q[:, start : start + most].float() * dim**-0.5, "b q (k g) d -> b k g q d", k=k.shape[2])
        scores = some @ keys
        if cap is not None:
            scores = scores.div_(cap).tanh_().mul_(cap)
        hidden = ~visible[:, start : start + most]
        if not q.is_cpu or hidden.any():  # on a GPU, reading `hidden` would synchronize
            # A row of only -inf would become NaN; slots past a row's length may be NaN already.
            scores.masked_fill_(hidden[:, None, None], torch.finfo(scores.dtype).min)
        weights = F.pad(scores, (0, 1)).softmax(-1)[..., :-1] if sink else scores.softmax(-1)
        parts.append(weights.mean((1, 2)).masked_fill_(hidden, 0))
    return torch.cat(parts, 1) if len(parts) != 1 else parts[0]
