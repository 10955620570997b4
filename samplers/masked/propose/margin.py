"""Scores a candidate by the difference between the two highest probabilities.

Train for the Worst, Plan for the Best ("top probability margin"), https://arxiv.org/abs/2502.06768

    score = p(1) - p(2)

`of` as in `confidence`. Exact: no; `sequential` is defined in order of confidence.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Evidence, Proposal, Propose


@register("margin", checked="golden/dimple golden/dream reference:reference.naive_masked.decode")
class Margin(Propose):
    provides = frozenset({Trait.NEEDS_NO_HOST})

    of: Annotated[Literal["raw", "filtered"], "score before (raw) or after temperature and filters"] = "raw"

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        measure = evidence.measured(self.of).confidence
        return evidence.propose(evidence.draw(canvas), (1 - (measure.top2 - measure.top1).exp()) / measure.mass)
