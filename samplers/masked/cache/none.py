"""No cache: every forward computes the whole row.

Large Language Diffusion Models, https://arxiv.org/abs/2502.09992

    queried = [0, end)

Exact: greedy, by definition.
"""

from __future__ import annotations

import numpy as np

from ...registry import register
from ...traits import Trait
from ..contracts import Cache, Canvas, QuerySpec


@register(
    "none",
    exact="greedy",
    checked="golden/dimple golden/dream golden/llada golden/wedlm reference:samplers.cache_checks.ByHand",
)
class NoCache(Cache):
    provides = frozenset({Trait.KV_OF_TOKENS, Trait.WHOLE_BLOCK})

    def query(self, canvas: Canvas, state: None) -> QuerySpec:
        return QuerySpec(np.zeros_like(canvas.end), canvas.end)
