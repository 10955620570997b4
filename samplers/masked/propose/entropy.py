"""Scores a candidate by how concentrated its distribution is.

Dream 7B: Diffusion Large Language Models, https://arxiv.org/abs/2508.15487

    score = sum_v p_v ln p_v        (minus the entropy, in nats)

`of` as in `confidence`. Exact: no; `sequential` is defined in order of confidence.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Evidence, Proposal, Propose


@register(
    "entropy",
    checked="golden/dimple golden/dream golden/llada golden/sdar_moe golden/wedlm "
    "reference:reference.naive_masked.decode",
)
class Entropy(Propose):
    provides = frozenset({Trait.NEEDS_NO_HOST, Trait.SCORES_BY_ENTROPY, Trait.SCORES_WITHOUT_PROBABILITY})

    of: Annotated[Literal["raw", "filtered"], "score before (raw) or after temperature and filters"] = "raw"

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        return evidence.propose(evidence.draw(canvas), -evidence.measured(self.of).confidence.entropy)
