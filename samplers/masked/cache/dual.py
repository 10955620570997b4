"""Dual cache: K/V before and after the block are reused, only the block is computed at every step.

Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and Parallel Decoding,
https://arxiv.org/abs/2505.22618

    queried = [0, end) when a block is entered, [block start, block end) otherwise

In a shifted family the position before the block is queried as well while the block's first token, which it predicts,
is open.
`refresh` counts the steps of a row through all its blocks.
`reference=true` refreshes and commits in the order of the published loops: see `span_cache.py`.
Exact: no; in block-causal families yes, since everything before the block is final, but `block` queries less there: on
entering a block only the last one and the new one.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...registry import register
from ..contracts import Canvas
from .span_cache import SpanCache


@register("dual", checked="golden/dream golden/llada reference:samplers.cache_checks.ByHand")
class Dual(SpanCache):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"refresh": (0, 4)}

    def stop(self, canvas: Canvas) -> np.ndarray:
        return canvas.block_end
