"""Drafts with the target's first layers and its head; the verify pass goes on from their states.

LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding, https://arxiv.org/abs/2404.16710
Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, https://arxiv.org/abs/2404.18911

    q = softmax(head(norm(h_E))),  h_E the states behind the first E layers;  a verified position runs layers E + 1 .. L

What a node's first layers gave is never computed twice: their states go into the verify pass, and their K/V lie where
it reads them. Nodes that were drafted but not expanded get theirs before it.

Deviates from the papers: no trained head or adapter, so that acceptance is what the target's own layers give; drafts
may be trees.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch.nn.functional import pad

from pardec.models.errors import SpecError
from pardec.models.hidden import Hidden
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, Entered, Outcome, Uniforms
from ..draft_model import DraftModelState
from ..shape._growth import packed


@register("earlyexit", stage="draft", paper="arXiv:2404.16710", exact="greedy", checked="joint")
@dataclass(frozen=True)
class EarlyExit(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"layers": (2, 1), "k": (5, 3)}

    layers: Annotated[int, "of the target, that draft"] = 2
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5

    def __post_init__(self) -> None:
        self.require("layers", "k", least=1)

    def width(self, model: LanguageModel) -> int:
        if self.layers >= model.layers:
            raise SpecError(
                f"earlyexit: layers must be fewer than the {model.layers} of {model.name}, got {self.layers}",
                hint=f"earlyexit:layers={max(1, model.layers // 2)}",
            )
        return self.k + 1

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | None) -> float | None:
        """The layers that a forward runs, of all; that the verify pass need not run them again is not counted."""
        return self.layers / target.layers

    def start(self, context: DecodeContext) -> Shallow:
        return Shallow(context, context.model, context.cache, layers=slice(0, self.layers))

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Shallow) -> Draft:
        draft = state.draft(self.k, room, uniforms)
        return state.entered(draft, self.layers) if state.drafting else draft

    def observe(self, outcome: Outcome, context: DecodeContext, state: Shallow) -> None:
        return


class Shallow(DraftModelState):
    """The target's first layers; keeps the states of a round by the slot that each node took, of a guided target all
    of its unguided half behind those of the other."""

    def _begin(self) -> None:
        super()._begin()
        model = self.context.model
        batch = len(self.start) * self.cache.copies
        self.states = torch.zeros(batch, 0, model.width, dtype=model.dtype, device=self.start.device)

    def _run(self, plan: Plan) -> Hidden:
        made = super()._run(plan)
        size = self.states.shape[1] + plan.width
        place = torch.where(plan.slots >= 0, plan.slots - self.start[:, None], size)
        wide = pad(self.states, (0, 0, 0, plan.width + 1))
        spot = place.repeat(self.cache.copies, 1)
        self.states = wide.scatter(1, spot[..., None].expand_as(made.states), made.states)[:, :-1]
        return made

    def entered(self, draft: Draft, layers: int) -> Draft:
        """The draft with the states of all its nodes, whose K/V are brought to the slots of the verify pass."""
        order = torch.arange(draft.width, device=self.start.device)
        real = order < torch.from_numpy(draft.sizes).to(order.device)[:, None]
        unheard = real & (self._place(draft.width) < 0)
        if most := int(unheard.sum(1).max()):
            self._feed(draft, packed(unheard, most))
        start, place = self.start[:, None], self._place(draft.width).clamp(min=0)
        if draft.parents is not None:
            self.cache.move(start + place, torch.where(real & (place != order), start + order, -1))
        spot = place.repeat(self.cache.copies, 1)
        states = self.states.gather(1, spot[..., None].expand(-1, -1, self.states.shape[-1]))
        return replace(draft, entered=Entered(layers, states), forwards=self.calls)
