"""Drafters that append probe nodes to the verify forward, whose states give the next round's predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...limits import check_nodes
from ...request import Request
from ...spec_values import MAX_INT_PARAM
from ...traits import Trait
from ..contracts import DecodeContext, Draft, ProbeLayout, ProbeNodes, RoundResult, Uniforms
from ..probe_nodes import Carry, after_every
from .draft_heads import HeadsState
from .module_drafter import ModuleDrafter, module_of


@dataclass(frozen=True)
class ProbeDrafter(ModuleDrafter):
    """A module of `depth` steps with probe nodes for each step; subclasses define the probe nodes.

    The logits of the last accepted node's queries are those of the next round, by the depth of a node.
    """

    k: Annotated[int, "tokens drafted, which is how deep a tree grows; at most as many as were trained"] = 3
    carry: Annotated[
        str | None,
        "probe steps after the nodes of each depth, joined by '-', per node by '.'; default: k everywhere",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in (self.carry or "1").replace(".", "-").split("-"):
            if not (part.isdecimal() and len(part) <= len(str(MAX_INT_PARAM)) and int(part) <= self.k):
                raise SpecError(
                    f"{self.registered[0]}: carry lists whole numbers up to k={self.k} joined by '-', "
                    f"got {self.carry!r}",
                    hint="carry=3-3-2-1 has 3 steps after node 0 and its children, 1 after depth 3 and more;"
                    " 3-3.1 has 3 after the first child, 1 after the others",
                )

    def chains(self, module: Any) -> ProbeLayout:
        """The layout of the probe nodes after a node."""
        raise NotImplementedError

    def begin(self, queries: ProbeNodes, module: Any) -> ProbeNodes:
        """The probe nodes with their inputs, or with the layers at which they enter."""
        raise NotImplementedError

    @property
    def provides(self) -> frozenset[Trait]:
        own = {Trait.DRAFTS_DURING_VERIFY, Trait.ADDS_VERIFY_NODES, Trait.SPLITS_TARGET}
        return super().provides - {Trait.READS_PROMPT} | own

    def most_queries(self, nodes: int, request: Request) -> int:
        count = nodes * len(self.chains(module_of(request)).step)
        check_nodes(self.registered[0], nodes + count)
        return count

    def start(self, context: DecodeContext) -> ProbeState:
        module = self.fitting_module(context)
        return ProbeState(context, module, len(self.chains(module).step))

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: ProbeState) -> Draft:
        module = module_of(context)
        draft = state.draft(self.k, remaining, uniforms)
        return replace(
            draft, queries=self.begin(after_every(draft, self.chains(module), remaining, self._carry), module)
        )

    @property
    def _carry(self) -> Carry | None:
        if self.carry is None:
            return None
        return tuple(tuple(map(int, level.split("."))) for level in self.carry.split("-"))


class ProbeState(HeadsState):
    """The states of the probe nodes after the last accepted node, which draft the next round.

    `states` are [B, L, E], by step, of all probe nodes of a node.
    """

    per_row = ("known",)
    ahead: Tensor  # float32 [B, D, V] logits of this round

    def __init__(self, context: DecodeContext, module: Any, count: int) -> None:
        super().__init__(context, module)
        self.states = self.states[:, None].repeat(1, count, 1)
        self.known = np.zeros_like(context.text.length)  # [B] on the host: steps with states
        self.each = count // len(set(module.step[:count]))  # probe nodes per step

    def draft(self, most: int, remaining: np.ndarray, uniforms: Uniforms) -> Draft:
        return super().draft(most, np.minimum(remaining, self.known), uniforms)

    def observe(self, outcome: RoundResult) -> None:
        queries, states = outcome.draft.queries, outcome.states
        if queries is None or states is None:  # the prompt's round
            return
        rows, index = torch.arange(len(states), device=states.device), self._last_index(outcome)
        self.states = states[rows[:, None], index.clamp(min=0)].to(self.states)
        self.known = outcome.read("known", lambda: self.to_observe(outcome))["known"]

    def to_observe(self, outcome: RoundResult) -> dict[str, Tensor]:
        if outcome.draft.queries is None or outcome.states is None:
            return {}
        return {"known": (self._last_index(outcome) >= 0)[:, :: self.each].sum(1)}

    def _last_index(self, outcome: RoundResult) -> Tensor:
        """[B, L]: the numbers of the probe nodes after the last accepted node, -1 for none."""
        queries, verdict = outcome.draft.queries, outcome.verdict
        assert queries is not None, "not the prompt's round"
        rows = torch.arange(len(verdict.path), device=verdict.path.device)
        return queries.index[rows, :, verdict.path[rows, verdict.count]]

    def _begin(self) -> None:
        self.ahead = self.module.logits(self.states[:, : self.most * self.each])

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        level, self.level = self.level, self.level + 1
        return self._level_wide(self.ahead[:, level : level + 1], draft, nodes)
