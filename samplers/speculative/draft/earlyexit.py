"""Drafts with the target's first layers and its head; the verify pass continues from their outputs.

LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding, https://arxiv.org/abs/2404.16710
Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, https://arxiv.org/abs/2404.18911

    q = softmax(head(norm(h_E))),  h_E the output of the first E layers;  a verified position runs layers E + 1 .. L

The first layers are never run twice on a node: their outputs are the verify pass's inputs, and their K/V are where it
reads them. Nodes that were drafted but not expanded are run through them before it.

Deviates from the papers: no trained head or adapter, only the target's own layers; drafts may be trees.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch.nn.functional import pad

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, LowerLayerStates, Uniforms
from ..draft_model import DraftModelState


@register("earlyexit", exact="greedy", checked="joint")
class EarlyExit(Drafter):
    provides = frozenset(
        {
            Trait.DRAFTS_DURING_VERIFY,
            Trait.TAKES_SHAPE,
            Trait.TAKES_LENGTH,
            Trait.ADDS_VERIFY_NODES,
            Trait.SPLITS_TARGET,
        }
    )
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"layers": (2, 1), "k": (5, 3)}

    layers: Annotated[int, "how many of the target's first layers draft"] = 2
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

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The share of layers that a forward runs, although the verify forward does not run them again."""
        return self.layers / target.layers

    def start(self, context: DecodeContext) -> Shallow:
        return Shallow(context, context.model, context.cache, layers=slice(0, self.layers))

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Shallow) -> Draft:
        draft = state.draft(self.k, remaining, uniforms)
        return state.early(draft, self.layers) if state.drafting else draft


class Shallow(DraftModelState):
    """The target's first layers; stores a round's states by each node's slot.

    With guidance the unconditional rows come after the conditional ones.
    """

    def _begin(self) -> None:
        super()._begin()
        model = self.context.model
        batch = len(self.start) * self.cache.copies
        self.states = torch.zeros(batch, 0, model.width, dtype=model.dtype, device=self.start.device)

    def _run(self, plan: Plan) -> Hidden:
        output = super()._run(plan)
        size = self.states.shape[1] + plan.width
        slot = torch.where(plan.slots >= 0, plan.slots - self.start[:, None], size)
        padded = pad(self.states, (0, 0, 0, plan.width + 1))
        index = slot.repeat(self.cache.copies, 1)
        self.states = padded.scatter(1, index[..., None].expand_as(output.states), output.states)[:, :-1]
        return output

    def early(self, draft: Draft, layers: int) -> Draft:
        """The draft with the states of all its nodes; moves their K/V to the slots of the verify forward."""
        _, slot = self._feed_rest(draft)
        index = slot.repeat(self.cache.copies, 1)
        states = self.states.gather(1, index[..., None].expand(-1, -1, self.states.shape[-1]))
        return replace(draft, early=LowerLayerStates(layers, states), forwards=self.calls)
