"""Shared by EAGLE-like drafters: pairs of a token and the state before it, in the module's own KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import PardecError
from pardec.models.plan import Hidden, Plan

from ...batching import scatter_rows
from ...host_transfer import upload
from ..contracts import DecodeContext, Draft, RoundResult
from ..draft_model import DraftModelState
from .module_drafter import module_failure


class PairState(DraftModelState):
    """A drafter of pairs (token, state before it); a pair is stored in the slot of its state.

    `pending` are the target's states that have not been fed yet: entry j of row b is the one of slot cached[b] + j.
    Those of rounds without drafts wait in `later` until they are fed, or the rows change.
    """

    per_row = ("pending",)
    lag = 1
    model: Any  # the module
    pending: Tensor | None = None  # [B, W, E]
    later: list[Tensor]  # [B, 1, F] each, from slot `later_base` [B] on
    later_base: np.ndarray
    states: Tensor  # [B, R, E] the drafter's outputs of this round, by slot after `start`
    chains: Any = None  # what drafts greedy chains in one call, made for `model`

    def __init__(self, context: DecodeContext, model: Any, cache: KVCache, **more: Any) -> None:
        super().__init__(context, model, cache, **more)
        self.later = []

    def read_prompt(self, rows: np.ndarray, hidden: Hidden) -> None:
        """Keeps the target's states at every position of these rows' prompts."""
        features = self.model.fuse(self.model.states.of(hidden))
        if len(rows) == len(self.cached):  # all rows, in order
            self.pending = features
            return
        if self.pending is None:
            self.pending = features.new_zeros(len(self.cached), 0, features.shape[-1])
        self.pending = scatter_rows(self.pending, rows, features)

    def observe(self, outcome: RoundResult) -> None:
        """Keeps the target's states along the accepted path, and drops the K/V of drafted tokens."""
        if outcome.states is None:  # the prompt's round: see `read_prompt`
            return
        path, draft = outcome.verdict.path, outcome.draft
        states = outcome.states[:, : path.shape[1]]  # on a chain the path is its nodes
        if draft.parents is not None:
            states = outcome.states.gather(1, path[..., None].expand(-1, -1, states.shape[-1]))
        if not self.drafting and draft.width == 1 and states.device.type == "cpu":  # a captured graph overwrites them
            if not self.later:
                self.later_base = draft.base
            self.later.append(states)
            return
        self._take_later()
        waiting = draft.base - self.cached
        if self.drafting:
            waiting = np.where(self.fed, 0, waiting)
        self.cached = draft.base - waiting
        self._wait(states, waiting)

    def keep(self, rows: np.ndarray) -> None:
        self._take_later()
        super().keep(rows)

    def before_join(self, where: np.ndarray, other: Self) -> None:
        self._take_later()
        other._take_later()
        super().before_join(where, other)

    def _take_later(self) -> None:
        """Moves the states of rounds without drafts, in each of which every row gained a token, to `pending`."""
        if self.later:
            self._wait(torch.cat(self.later, 1), self.later_base - self.cached)
            self.later = []

    def _wait(self, states: Tensor, waiting: np.ndarray) -> None:
        """Appends the target's states [B, D, F] to the first `waiting` [B] pending ones of each row."""
        features = self.model.fuse(states)  # [B, D, E]
        if not waiting.any():
            self.pending = features
            return
        assert self.pending is not None
        start = upload(waiting, features.device)[:, None]
        most = int(waiting.max())
        index = start + torch.arange(features.shape[1], device=features.device)
        merged = pad(self.pending[:, :most], (0, 0, 0, features.shape[1]))
        self.pending = merged.scatter(1, index[..., None].expand_as(features), features)

    def greedy_chain(self, count: int) -> Tensor | None:
        context, request, cached, base = self.context, self.context.request, int(self.cached[0]), int(self.base[0])
        if not self.alone or self.slot.shape[1] or request.filters or context.reads_ids():
            return None
        if self.chains is None or self.chains.module is not self.model:
            self.chains = self.model.chain(self.cache)
            if self.chains is None:
                return None
        assert self.pending is not None
        tokens = torch.from_numpy(context.text.host[0, cached + self.lag : base + 1 + self.lag])
        drafted: tuple[Tensor, Tensor] | None = self.chains.draft(tokens, self.pending[0, : len(tokens)], cached, count)
        if drafted is None:
            return None
        self.calls, self.fed = count, np.ones(1, dtype=bool)
        whole, self.highest = drafted
        return whole[None, len(tokens) - 1 :]

    def to_observe(self, outcome: RoundResult) -> Mapping[str, Tensor]:
        return {}

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        return module_failure(self.model, "its states may overflow the dtype: load it in float32")

    def _begin(self) -> None:
        super()._begin()
        self._take_later()
        module = self.model
        self.states = torch.zeros(len(self.start), 0, module.width, dtype=module.dtype, device=module.device)

    def _committed_soft(self, rows: Tensor, width: int) -> Tensor:
        assert self.pending is not None
        pending = self.pending[:, :width]
        return pending if len(rows) == len(pending) else pending[rows]

    def _drafted_soft(self, draft: Draft, nodes: Tensor) -> Tensor:
        if draft.parents is None:
            return self.states[:, -1:]
        above = self.slot.gather(1, draft.parent.gather(1, nodes).clamp(min=0)).clamp(min=0)
        return self.states.gather(1, above[..., None].expand(-1, -1, self.states.shape[-1]))

    def _run(self, plan: Plan) -> Hidden:
        output = super()._run(plan)
        states = self.model.fed_back(output.states)
        if plan.narrow:  # committed tokens: the state of the last one of each row is that of node 0
            if not output.narrowed:
                states = states.gather(1, plan.want[..., None].expand(-1, -1, states.shape[-1]))
            if plan.rows is not None:
                whole = self.states if self.states.shape[1] else pad(self.states, (0, 0, 0, 1))
                states = whole.index_copy(0, plan.rows, states)
            self.states = states
        elif plan.visible.kind == "causal" or plan.stored is not None:  # slot after slot
            self.states = torch.cat((self.states, states), 1)
        else:
            size = self.states.shape[1] + plan.width
            slot = torch.where(plan.slots >= 0, plan.slots - self.start[:, None], size)
            padded = pad(self.states, (0, 0, 0, plan.width + 1))
            self.states = padded.scatter(1, slot[..., None].expand_as(states), states)[:, :-1]
        return output
