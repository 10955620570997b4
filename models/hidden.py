"""What a forward hands back: hidden states, on which the language-model head runs for the rows that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """States after the last layer that ran, before the final norm. The head runs when `logits` is called, as often as wanted."""

    plan: Plan
    states: Tensor  # [B, Q, E]
    head: Callable[[Tensor], Tensor]  # [M, E] -> [M, V], final norm included
    taps: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> [B, Q, E] output of that layer

    def logits(self, positions: Tensor | None = None) -> Tensor:
        """Logits of the plan's `want`, or of the queries at absolute `positions` [B, K] -> float32 [B, K, V].

        An entry of -1, or a position that was not queried, gives the logits of query 0: ask `has` first.
        """
        index = self.plan.want if positions is None else self.plan.at(positions)
        index = index.to(self.states.device)
        batch, width, _ = self.states.shape
        picked = index.clamp(min=0)
        if batch > 1:
            picked = picked + torch.arange(0, batch * width, width, device=index.device)[:, None]
        chosen = self.states.flatten(0, 1).index_select(0, picked.flatten())
        logits = self.head(chosen).to(self.plan.tokens.device, torch.float32)
        return logits.unflatten(0, index.shape)

    def has(self, positions: Tensor) -> Tensor:
        """Whether each of `positions` [B, K] was queried -> bool [B, K]."""
        return self.plan.at(positions) >= 0
