"""Scores candidates from left to right: with `sequential` or `fixed` this is autoregressive decoding.

Dimple: Discrete Diffusion Multimodal Large Language Model with Parallel Decoding ("autoregressive"),
https://arxiv.org/abs/2505.16990

    score = -(1 + position)

Every score is negative, so that no threshold on a probability is ever passed and the leftmost open position is taken.
Dimple's variant with a threshold measures the probability beside it: `confidence+confident:order=left`.
Exact: no; `sequential` is defined in order of confidence.
"""

from __future__ import annotations

from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Evidence, Proposal, Propose


@register("leftmost", checked="golden/dimple golden/sdar_moe")
class Leftmost(Propose):
    provides = frozenset({Trait.NEEDS_NO_HOST, Trait.SCORES_WITHOUT_PROBABILITY})

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        return evidence.propose(evidence.draw(canvas), -1.0 - evidence.positions.float())
