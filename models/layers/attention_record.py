"""Records the attention of chosen queries in chosen layers, which is computed in addition to the forward's own.

    A[i, s] = mean over heads of softmax_s(q_i . k_s / sqrt(D)) over the slots s that query i sees

In a stack whose softmax has a sink, the weights of a query sum to less than 1: the sink has the rest.

The kernels never hold these weights. Where a plan asks for them, its layers hand over the queries and keys that the
kernels are about to read, so that they are those of the same forward, whatever the cache, the norms and the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..kernels.attention import AttentionPattern, read_rows, visible_slots
from ..plan import Plan

_BYTES = 1 << 26  # bytes of scores computed at a time


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRecord:
    """Collects the attention of one forward's layers on one device."""

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
