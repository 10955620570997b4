"""Drafts with a small transformer that reads the target's states: EAGLE-1, -2 and -3.

EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty, https://arxiv.org/abs/2401.15077
EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees, https://arxiv.org/abs/2406.16858
EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test,
https://arxiv.org/abs/2503.01840

    q(. | x_1 .. x_i) after the pairs (x_2, g_1) .. (x_i, g_(i-1)),
    g_j = the target's state at position j where x_j is committed, else the drafter's own output there

A vocabulary of the commonest ids lacks what a text is about: with `prompt_ids` a row drafts those of its prompt, too.
The folder decides which version it is, EAGLE-3.1 (`fc_norm`: a norm of each of the target's states) included (see
`models.draft_modules.eagle`). A round drops the K/V of the drafted nodes, and feeds the accepted ones again, with the
target's states, in the first forward of the next round that drafts.

Deviates from the authors' code: rows of any lengths in a batch, drafts of any shape and length; the tree of EAGLE-2 is
the shape `beam`, whose levels are its `depth` + 1.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from pardec.models.caches.kv_cache import KVCache

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext
from .eagle_state import PairState
from .module_drafter import ModuleDrafter, module_of


class PromptPairState(PairState):
    """A pair drafter that also drafts the ids of each row's own prompt."""

    per_row = ("prompts",)

    def __init__(self, context: DecodeContext, module: Any, cache: KVCache, **more: Any) -> None:
        super().__init__(context, module, cache, **more)
        text = context.text
        self.module, self.prompts = module, [np.unique(text.row(at)) for at in range(len(text))]
        self.model = module.with_ids(self.prompts)

    def rows_changed(self) -> None:
        if self.prompts:
            self.model = self.module.with_ids(self.prompts)


@register(
    "eagle",
    paper="arXiv:2503.01840",
    exact="greedy",
    checked="golden/eagle reference:reference.naive_eagle.draft joint",
)
class Eagle(ModuleDrafter):
    taps: Annotated[
        str | None, "target layers whose outputs an EAGLE-3 module reads, as 1-29-57; by default its config's"
    ] = None

    prompt_ids: Annotated[
        bool, "also draft the ids of a row's prompt, if the module drafts with some rows of the target's head"
    ] = False

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.OBSERVES_TOKENS}

    def options(self) -> tuple[tuple[str, Any], ...]:
        return () if self.taps is None else (("taps", self.taps),)

    def start(self, context: DecodeContext) -> PairState:
        module, kind = module_of(context), PromptPairState if self.prompt_ids else PairState
        return kind(context, module, context.drafter_cache(module), own=True)
