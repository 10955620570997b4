"""Drafts with the target's first layers; the number of layers and of tokens is chosen in every round.

DEL: Context-Aware Dynamic Exit Layer for Efficient Self-Speculative Decoding, https://arxiv.org/abs/2504.05598

    (l, d) = argmax TPL,  TPL(l, d) = (1 - a_l^(d+1)) / (1 - a_l) / (d l + L): expected tokens for each layer that runs
    a_l = matched_l / tested_l;  tested: the verified positions whose tokens before them stand, so the first mismatch is
    the last of them;  matched: those where argmax head(norm(h_l)) is the token that was committed after them
    a draft ends after token i  iff  max q_i < (mean max q of accepted tokens + mean of rejected ones) / 2

These shadow tokens cost no forward but one product with the head for each exit: the states h_l of all layers are those
of drafting and verifying. Counts and means fade by `decay` a round. As with `earlyexit` no layer runs twice on a node:
rows exit where each is best, and before the verify pass those that exit early are brought to the deepest exit of the
batch.

Deviates from the paper: counts begin as one position that deeper layers match likelier (l / L); the first draft is of
`k` tokens after half of the layers; d = 0 is a choice; drafts may be trees, whose depth is d; under guidance shadow
tokens are those of the conditional states.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import TargetStates

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from .exit_states import Choice, ExitStates
from .exits import parse_exits


@register("del", exact="greedy", checked="joint")
class DynamicExit(Drafter):
    provides = frozenset({Trait.DRAFTS_DURING_VERIFY, Trait.TAKES_SHAPE})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (8, 5, 12)}

    k: Annotated[int, "tokens drafted at most, which is how deep a tree grows"] = 8
    exits: Annotated[str | None, "numbers of layers that may draft, joined by '-'; default: any number below all"] = (
        None
    )
    decay: Annotated[float, "factor by which counts and means fade per counted round"] = 0.95
    every: Annotated[int, "shadow tokens are counted in every n-th round of a row"] = 1

    def __post_init__(self) -> None:
        self.require("k", "every", least=1)
        if not 0 < self.decay <= 1:
            raise SpecError(f"del: decay must lie in (0, 1], got {self.decay}")
        parse_exits("del", self.exits)

    def width(self, model: LanguageModel) -> int:
        self.exits_of(model)
        return self.k + 1

    def exits_of(self, model: LanguageModel) -> tuple[int, ...]:
        """The layers after which a draft may exit. Raises SpecError unless all are below the model's last layer."""
        exits = parse_exits("del", self.exits) or tuple(range(1, model.layers))
        if not exits or exits[-1] >= model.layers:
            raise SpecError(
                f"del: exits must be below the {model.layers} layers of {model.name}, "
                f"got {'-'.join(map(str, exits)) or 'none'}",
                hint="leave out exits" if self.exits else "draft with another method",
            )
        return exits

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The cost ratio of the first draft."""
        exits = self.exits_of(target)
        return exits[len(exits) // 2] / target.layers

    def target_taps(self, model: LanguageModel) -> TargetStates | None:
        return TargetStates(tuple(exit_ - 1 for exit_ in self.exits_of(model)))

    def start(self, context: DecodeContext) -> ExitStates:
        exits = self.exits_of(context.model)
        choice = Choice(len(context.text), exits, context.model.layers, self.k, self.decay)
        # `choice` also ends drafts, in the place of the length controller, which a spec with `del` cannot name.
        return ExitStates(replace(context, sampler=replace(context.sampler, length=choice)), choice)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: ExitStates) -> Draft:
        draft = state.draft(self.k, remaining, uniforms)
        return state.early_draft(draft) if state.drafting else draft

    def observe(self, outcome: RoundResult, context: DecodeContext, state: ExitStates) -> None:
        due = (context.text.nfe % self.every) == 0
        state.count(outcome, due)

    def to_observe(self, outcome: RoundResult, state: ExitStates) -> Mapping[str, Tensor]:
        return state.to_observe(outcome)
