"""Commits one token per forward, the most confident first: the baseline of every parallel method.

Large Language Diffusion Models, https://arxiv.org/abs/2502.09992 (one token per step)

    commit = argmax over the block's open positions of score

Exact: greedy, by definition.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ...ops.rank import best
from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Proposal, Select


@register(
    "sequential", exact="greedy", checked="golden/dimple golden/wedlm reference:reference.naive_masked.sequential"
)
class Sequential(Select):
    provides = frozenset({Trait.NEEDS_NO_HOST})

    def commits(self, canvas: Canvas, state: None) -> np.ndarray:
        return np.ones(len(canvas), dtype=np.int64)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        return best(proposal.score)
