"""The result of a forward: hidden states, and the head that makes logits of the wanted rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .plan import Plan

_NOTHING = nullcontext()


def _unchanged(states: Tensor) -> Tensor:
    return states


def _no_head(states: Tensor) -> Tensor:
    raise AssertionError("this result has only the states that a drafter reads, and no logits")


@dataclass(frozen=True, slots=True)
class TargetStates:
    """The states of a target that a drafter reads at every position."""

    layers: tuple[int, ...] = ()  # outputs of these layers, side by side in this order; -1 is the embedding
    normed: bool = False  # whether the state after the final norm follows them

    def of(self, hidden: Hidden) -> Tensor:
        """[B, Q, S] of a forward whose plan has these layers in `hidden`; without the copies that guidance adds."""
        device = hidden.states.device
        parts = [hidden.taps[layer].to(device) for layer in self.layers] + ([hidden.normed()] if self.normed else [])
        return torch.cat(parts, -1)[: hidden.plan.batch]

    def __or__(self, other: TargetStates | None) -> TargetStates:
        """The union of both, without duplicates."""
        if other is None:
            return self
        layers = (*self.layers, *(layer for layer in other.layers if layer not in self.layers))
        return TargetStates(layers, self.normed or other.normed)

    def below(self, layers: int) -> bool:
        """Whether these states are known before the last of `layers` layers runs."""
        return not self.normed and all(layer < layers - 1 for layer in self.layers)

    def part(self, values: Tensor, wanted: TargetStates) -> Tensor:
        """[B, Q, S'] the states `wanted`, a subset of these, out of the `values` [B, Q, S] that `of` returned."""
        if wanted == self:
            return values
        parts = values.chunk(len(self.layers) + self.normed, -1)
        chosen = [parts[self.layers.index(layer)] for layer in wanted.layers] + [parts[-1]] * wanted.normed
        return torch.cat(chosen, -1)

    def hidden(self, plan: Plan, values: Tensor) -> Hidden:
        """The `Hidden` of `plan` from which `of` returns `values` [B, Q, S]; it has no logits."""
        parts = values.chunk(len(self.layers) + self.normed, -1)
        return Hidden(plan, parts[-1], _no_head, dict(zip(self.layers, parts, strict=False)))


@dataclass(frozen=True, slots=True, eq=False)
class IdSubset:
    """The ids that a head computes logits of."""

    ids: Tensor  # [N] int64
    size: int  # number of ids in the vocabulary

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [..., N] over the whole vocabulary [..., V], -inf for all other ids."""
        whole = logits.new_full((*logits.shape[:-1], self.size), -torch.inf)
        return whole.index_copy_(-1, self.ids, logits)


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """States after the last layer that ran, before the final norm; the head runs whenever `logits` is called."""

    plan: Plan
    states: Tensor  # [B, Q, E]
    head: Callable[[Tensor], Tensor]  # [M, E] -> [M, V], final norm included
    taps: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> [B, Q, E] output of that layer
    narrowed: bool = False  # the last layer ran on the plan's `want` alone: states is [B, K, E], aligned to it
    norm: Callable[[Tensor], Tensor] = _unchanged  # [..., E]: the final norm, where `head` begins with one
    subset: IdSubset | None = None  # the ids of the head's columns; None: all, in order
    queries: tuple[Tensor, ...] = ()  # per layer that ran [B, n, H, D]: `Plan.queries` queries, as they enter attention
    # Layer -> [B, M, S] float32, attention of the queries `Plan.attending` to the slots read (without a cache slot
    # i is query i), averaged over the heads; all 0 where a query is padding. Its layers are `Plan.attention`.
    attention: Mapping[int, Tensor] = field(default_factory=dict)
    made: tuple[Tensor, ...] = ()  # what `Plan.tail` computed, where the forward was captured with it

    def normed(self) -> Tensor:
        """[B, Q, E] the states after the final norm, the input of the head's matmul."""
        return self.norm(self.states)

    def logits(self, positions: Tensor | None = None, *, subset: bool = False, in_order: bool = False) -> Tensor:
        """Logits of the plan's `want`, or of the queries at absolute `positions` [B, K] -> float32 [B, K, V].

        With `subset` they are over the ids of that alone, where there is one. An entry of -1, or a position that has
        no row, gives the logits of some other query: check `has` first. `in_order` says that the plan wants all of its
        queries in order, so that no state has to be moved.
        """
        # States of an inference-mode forward cannot enter an autograd graph.
        with (
            torch.inference_mode() if self.states.is_inference() and not torch.is_inference_mode_enabled() else _NOTHING
        ):
            rows = self.plan.want if positions is None else self._rows(positions)
            states = self.states.flatten(0, 1)
            aligned = self.narrowed or (in_order and self.states.shape[1] == rows.shape[1])
            if not aligned or positions is not None:
                states = states.index_select(0, self._flat(rows))
            logits = self.head(states).float()
            if self.subset is not None and not subset:
                logits = self.subset.spread(logits)
            return logits.view(*rows.shape, logits.shape[-1])

    def some(self, index: Tensor, positions: Tensor | None = None) -> Tensor:
        """`logits` at these indices into [B * K] only: [N] -> float32 [N, V]."""
        with (
            torch.inference_mode() if self.states.is_inference() and not torch.is_inference_mode_enabled() else _NOTHING
        ):
            if not self.narrowed or positions is not None:
                rows = self.plan.want if positions is None else self._rows(positions)
                index = self._flat(rows)[index]
            logits = self.head(self.states.flatten(0, 1).index_select(0, index)).float()
            return logits if self.subset is None else self.subset.spread(logits)

    def has(self, positions: Tensor) -> Tensor:
        """Whether each of `positions` [B, K] has a row -> bool [B, K]."""
        return self._rows(positions) >= 0

    def _rows(self, positions: Tensor) -> Tensor:
        """The row of `states` for each of `positions` [B, K], -1 where there is none."""
        index = self.plan.at(positions)
        if not self.narrowed:
            return index
        match, row = ((index[:, :, None] == self.plan.want[:, None, :]) & (index[:, :, None] >= 0)).max(dim=-1)
        return torch.where(match, row, -1)

    def _flat(self, rows: Tensor) -> Tensor:
        """Rows [B, K] of each batch row, as indices into [B * M]; -1 is row 0."""
        batch, width, _ = self.states.shape
        rows = rows.to(self.states.device).clamp(min=0)
        if batch > 1:
            rows = rows + torch.arange(0, batch * width, width, device=rows.device)[:, None]
        return rows.flatten()
