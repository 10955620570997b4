"""Shared by the drafters that are heads on the target's last state: the state of a request, which is a draft model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import PardecError
from pardec.models.plan import Hidden

from ...host_transfer import upload
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel, RoundResult, Uniforms
from ..draft_model import DraftState, depth_budget
from .module_drafter import module_failure


class HeadsState(DraftState, DraftModel):
    """The state of the heads during one request.

    `states` [B, E] are the target's, after the final norm, at the last position that each row has fed: the newest
    committed token follows it. Shapes ask for a draft level by level, so that the host knows the head of each call.
    """

    per_row = ("states",)
    states: Tensor
    highest: Tensor  # [] the sum of this round's highest logits: see `models.finite`

    def __init__(self, context: DecodeContext, module: Any) -> None:
        self.context, self.module = context, module
        self.states = torch.zeros(len(context.text), module.target.width, dtype=module.dtype, device=module.device)
        self.most = self.level = 0  # levels of this round at most, and so far
        self.calls = 0  # drafting forwards of this round
        shape, request = context.sampler.shape, context.request
        self.unprocessed = shape is not None and Trait.UNPROCESSED_SCORES in shape.provides
        # Heads with one distribution per level still have one after processing, unless processors read the path.
        self.pathless = self.unprocessed or not request.reads_history

    def read_prompt(self, rows: np.ndarray, hidden: Hidden) -> None:
        """Keeps the states after the last token of each prompt."""
        which = upload(rows, self.states.device)
        self.states = self.states.index_copy(0, which, self._last(which, self.module.states.of(hidden)))

    def _last(self, which: Tensor, states: Tensor) -> Tensor:
        """[n, E]: the states after the last tokens, from the prompts' states [n, P, E]; `which` [n]: the live rows."""
        last = upload(self.context.text.length, which.device)[which] - 1
        return states[torch.arange(len(which), device=which.device), last].to(self.states)

    def observe(self, outcome: RoundResult) -> None:
        """Keeps the states at the ends of the accepted paths."""
        if outcome.states is None:  # the first round: `read_prompt` has its states
            return
        path, count = outcome.verdict.path, outcome.verdict.count[:, None]
        self.states = self._at_path_end(outcome.states, path, count)

    def _at_path_end(self, states: Tensor, path: Tensor, count: Tensor) -> Tensor:
        """[B, E]: the states [B, T, E] of nodes at the end of `path` [B, D], `count` [B, 1] nodes after node 0."""
        end = path.gather(1, count)
        return states.gather(1, end[..., None].expand(-1, -1, states.shape[-1]))[:, 0].to(self.states)

    def draft(self, most: int, remaining: np.ndarray, uniforms: Uniforms) -> Draft:
        """Drafts by the spec's shape and length, at most `most` tokens, one per head, and `remaining` [B] deep."""
        context, shape = self.context, self.context.sampler.shape
        budget = depth_budget(context, min(most, self.module.depth), remaining)
        self.most, self.level, self.calls = int(budget.max(initial=0)), 0, 0
        self.highest = torch.zeros((), device=self.states.device)
        if self.most <= 0:
            return Draft.none(context.text)
        self._begin()
        assert shape is not None, "drafters with heads have a shape"
        draft = shape.grow(self, context, budget, uniforms, context.state(shape))
        return replace(draft, forwards=self.calls, highest=self.highest)

    def _begin(self) -> None:
        """Called before the first forward of a round."""

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        raise NotImplementedError

    def prune(self, nodes: Tensor) -> None:
        """Does nothing: no state of the nodes is kept."""

    def _level_wide(self, raw: Tensor, draft: Draft, nodes: Tensor) -> Tensor:
        """Processed logits [B, K, V] of `nodes` [B, K], which share the logits raw [B, 1, V]; a view where possible."""
        wide = (-1, nodes.shape[1], -1)
        if not self.pathless:
            return self._processed(raw.expand(wide), draft, nodes)
        return self._processed(raw, draft, nodes[:, :1]).expand(wide)

    def _processed(self, raw: Tensor, draft: Draft, nodes: Tensor) -> Tensor:
        """Raw logits [B, K, V] of `nodes` [B, K], processed like the target's unless the shape uses raw logits."""
        self.highest = self.highest + torch.where(nodes >= 0, raw.amax(-1), 0).sum()
        return raw if self.unprocessed else self.context.distribution(raw, draft, nodes)

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        return module_failure(self.module)


class StaticState(HeadsState):
    """Heads that read the target's state alone: a look-up by depth, which is no forward."""

    ahead: Tensor  # float32 [B, J, V] logits of heads computed at once

    def _begin(self) -> None:
        self.ahead = self.states.new_empty(len(self.states), 0, 0)

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        level, self.level = self.level, self.level + 1
        if not self.module.shared:
            raw = self.module.logits(self.states, range(level, level + 1))
        else:
            if not level:
                self.ahead = self.module.logits(self.states, range(self.most))
            raw = self.ahead[:, level : level + 1]
        return self._level_wide(raw, draft, nodes)
