"""Drafts with a small transformer that reads the target's states: EAGLE-1, -2 and -3.

EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty, https://arxiv.org/abs/2401.15077
EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees, https://arxiv.org/abs/2406.16858
EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test,
https://arxiv.org/abs/2503.01840

    q(. | x_1 .. x_i) behind the pairs (x_2, g_1) .. (x_i, g_(i-1)),
    g_j = the target's state at position j where x_j is committed, else the drafter's own output there

The folder decides which version it is (see `models.draft_modules.eagle`). A round drops the K/V of the drafted nodes,
and feeds the accepted ones again, with the target's states, in the first forward of the next round that drafts.

Deviates from the authors' code: rows of any lengths in a batch, drafts of any shape and length; the tree of EAGLE-2 is
the shape `beam`, whose levels are its `depth` + 1.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from pardec.models.hidden import Hidden

from ...registry import register
from ..contracts import DecodeContext, Draft, RoundResult, Uniforms
from ._module import ModuleDrafter, module_of
from ._pairs import PairState


@register("eagle", stage="draft", paper="arXiv:2503.01840", exact="greedy", checked="golden/eagle reference joint")
@dataclass(frozen=True)
class Eagle(ModuleDrafter):
    taps: Annotated[str | None, "layers whose outputs an EAGLE-3 reads, as 1-29-57; by default its config's"] = None

    def options(self) -> tuple[tuple[str, Any], ...]:
        return () if self.taps is None else (("taps", self.taps),)

    def start(self, context: DecodeContext) -> PairState:
        module = module_of(context)
        return PairState(context, module, context.drafter_cache(module), own=True)

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: PairState) -> None:
        state.read_prompt(rows, hidden)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: PairState) -> Draft:
        return state.draft(self.k, room, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: PairState) -> None:
        state.follow(outcome)
