"""Relaxes the threshold near the positions that the select chose.

LocalLeap: Accelerating Diffusion LLM Inference via Local Determinism Propagation to Anchors,
https://arxiv.org/abs/2510.07081

    commit i as well if some anchor a has |i - a| <= radius and score_i >= relaxed

Anchors are the positions that select chose at this step, so that any select has neighbourhoods: with `threshold:tau`
they are the published ones. A best position that is committed only because none passes is no anchor, as published.
Nothing reaches over the edge of the block.
Exact: no; `radius=0` adds nothing.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn.functional import max_pool1d

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Proposal, Widen


@register("localleap", checked="reference:reference.naive_selects.localleap")
class LocalLeap(Widen):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"relaxed": (0.75, 0.6, 0.9), "radius": (4, 2)}

    provides = frozenset({Trait.NEEDS_NO_HOST})

    relaxed: Annotated[float, "least score near an anchor, a probability (see `threshold` for other proposers)"] = 0.75
    radius: Annotated[int, "positions on each side of an anchor; 0 adds nothing"] = 4

    def __post_init__(self) -> None:
        self.require("relaxed", most=1)
        self.require("radius", least=0)

    @property
    def exact(self) -> str:
        return "relaxed" if self.radius else "greedy"

    @property
    def requires(self) -> Reasons:
        if self.relaxed >= 0:
            return {}
        negative = "a negative value is minus an entropy in nats: use it with 'entropy+...'"
        return {Trait.SCORES_BY_ENTROPY: Why(f"localleap: relaxed must lie in [0, 1], got {self.relaxed}", negative)}

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        if not self.radius:
            return chosen
        anchors = (chosen & proposal.eligible).float()
        radius = min(self.radius, anchors.shape[1])  # the block's width at most
        near = max_pool1d(anchors, 2 * radius + 1, stride=1, padding=radius) > 0
        return chosen | (near & (proposal.score >= self.relaxed))
