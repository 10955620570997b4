"""Scores candidates at random: with `fixed` this is decoding in a random order.

Large Language Diffusion Models ("random remasking"), https://arxiv.org/abs/2502.09992

    score = u(position), uniform in (0, 1), drawn once per request

An order drawn beforehand has the same distribution as fresh scores at every step, and is known before a forward.
Exact: no; `sequential` is defined in order of confidence.
"""

from __future__ import annotations

import numpy as np

from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Evidence, Proposal, Propose


@register("random", checked="golden/llada reference:reference.naive_masked.decode")
class Random(Propose):
    provides = frozenset({Trait.KNOWN_SCORES})

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        source = evidence.request.source
        order = source.uniform(canvas.rows, np.zeros_like(canvas.step), evidence.positions, "order")
        return evidence.propose(evidence.draw(canvas), order.float())
