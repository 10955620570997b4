"""Drafts with the target's first layers, a trained adapter and its head; verifying continues from these layers.

Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, https://arxiv.org/abs/2404.18911

    q = softmax(head(adapter(h_E))),  h_E the output of the first E layers;  a verified position runs layers E + 1 .. L

The second exit of the title, which ends a draft before unsure tokens, is a length controller beside it:
`kangaroo:name=...,k=6+unsure:tau=0.6` has the authors' numbers.

The first layers run once on a node, as with `earlyexit`. The adapter has K/V of its own, which stay with the tokens
that are accepted. Behind a draft that was wholly accepted it lacks those of the last token, which is then fed with the
next one.

Deviates from the authors' code: rows of any lengths in a batch, drafts of any shape, tokens that are sampled.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from pardec.models.hidden import Hidden

from ...registry import register
from ..contracts import DecodeContext, Draft, RoundResult, Uniforms
from ._adapter_state import AdapterState
from ._module import ModuleDrafter


@register(
    "kangaroo",
    stage="draft",
    paper="arXiv:2404.18911",
    exact="greedy",
    checked="reference:reference.naive_kangaroo.states joint",
)
@dataclass(frozen=True)
class Kangaroo(ModuleDrafter):
    within_verify: ClassVar[bool] = True
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 6
    layers: Annotated[int | None, "of the target, that draft; by default as the adapter's config says, else 2"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            self.require("layers", least=1)

    def options(self) -> tuple[tuple[str, Any], ...]:
        return () if self.layers is None else (("layers", self.layers),)

    def start(self, context: DecodeContext) -> AdapterState:
        return AdapterState(context, self.fitting_module(context))

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: AdapterState) -> None:
        state.read_prompt(rows, hidden)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: AdapterState) -> Draft:
        draft = state.draft(self.k, room, uniforms)
        state.adapter_slots = state.slot if state.drafting else None
        return state.early(draft, state.module.exit_layers) if state.drafting else draft

    def observe(self, outcome: RoundResult, context: DecodeContext, state: AdapterState) -> None:
        state.follow(outcome)
