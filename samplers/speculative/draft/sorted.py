"""Drafts with the first layers of a second checkpoint, and with more of them where these are unsure.

S2D: Sorted Speculative Decoding For More Efficient Deployment of Nested Large Language Models,
https://arxiv.org/abs/2407.01955

    exits n_1 < n_2 < .. < n_S:  q_s = softmax(head(norm(h_(n_s)))),  the token is drawn from q_s of the first s with
    max q_s >= tau, or of the last exit

Every token begins with the first exit. Where that is unsure, the layers up to the next one go on from the same states;
rows that go on form a group. Layers that a token left out have no K/V of it: their input is remembered, and they run on
it with the next token that needs them, in the same forward. One set of weights drafts for any target of its vocabulary.
tau=0 is the first exit alone, tau=1 the last one.

Deviates from the paper: q is processed like the target's distribution, temperature and filters included, before its
maximum is compared with tau; one tau for all exits. Any checkpoint can be named; one that was trained for it learned
the sum of the losses at its exits (`scripts/train_text.py --exits`).
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.trimmed import parameters_read

from ...conditioning import conditioned_model
from ...registry import register
from ...spec import ModelName
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, SpeculativeSampler, Uniforms
from ..shape.chain import Chain
from ._checkpoint import check_pair
from ._exits import fitting_exits, parse_exits
from ._nested_exits import NestedState


@register("sorted", stage="draft", paper="arXiv:2407.01955", exact="greedy", checked="joint")
@dataclass(frozen=True)
class Sorted(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.7, 0.4, 0.9), "k": (5, 3, 8)}

    name: Annotated[ModelName | None, "of the drafting checkpoint: embedded name, folder or hub id"] = None
    exits: Annotated[str | None, "layers it can stop behind, joined by '-'; by default half of them, and all"] = None
    tau: Annotated[float, "probability of the likeliest token, under which more layers run"] = 0.7
    k: Annotated[int, "tokens drafted"] = 5

    def __post_init__(self) -> None:
        self.require("k", least=1)
        self.require("tau", least=0, most=1)
        parse_exits("sorted", self.exits)

    def check(self, sampler: SpeculativeSampler) -> None:
        if not self.name:
            raise SpecError(
                "sorted: name is not given: the checkpoint that drafts",
                hint="write sorted:name=... with an embedded name, a folder or a hub id of the target's vocabulary",
            )
        if not isinstance(sampler.shape, Chain):
            raise SpecError("sorted drafts chains", hint="leave the shape out, or draft with model:name=...")

    @property
    def needed_model(self) -> str | None:
        return self.name

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """At most: parameters of all layers of the drafter over those of the target."""
        return parameters_read(draft_model) / target.parameters if isinstance(draft_model, LanguageModel) else None

    def start(self, context: DecodeContext) -> NestedState:
        drafter = context.request.draft_model
        if not isinstance(drafter, LanguageModel):
            raise ModelError("sorted: the request has no draft model", "load it and hand it in as Request.draft_model")
        check_pair(drafter, context.model)
        exits = parse_exits("sorted", self.exits) or tuple(sorted({max(1, drafter.layers // 2), drafter.layers}))
        fitting_exits("sorted", exits, drafter.layers, drafter.name)
        return NestedState(context, conditioned_model(drafter, context.request), exits, self.tau)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: NestedState) -> Draft:
        return state.draft(self.k, room, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: NestedState) -> None:
        state.settle()
