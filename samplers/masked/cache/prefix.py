"""Prefix cache: K/V before the block are reused, the block and everything after it is computed at every step.

Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and Parallel Decoding,
https://arxiv.org/abs/2505.22618

    queried = [0, end) when a block is entered, [block start - before, end) otherwise

In a shifted family the position before the block is queried as well while the block's first token, which it predicts,
is open; `before=1` queries it at every step, as the published prompt caches of dKV-Cache ("prefill", on Dream) and of
Dimple do, where the canvas is one block.
`refresh` counts the steps of a row through all its blocks.
`reference=true` refreshes and commits in the order of the published loops: see `span_cache.py`.
Exact: no; in block-causal families yes, since everything before the block is final, but `block` queries less there: on
entering a block only the last one and the new one.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from ...registry import register
from ..contracts import Canvas
from .span_cache import SpanCache


@register("prefix", checked="golden/dimple golden/dream golden/llada reference:samplers.cache_checks.ByHand")
class Prefix(SpanCache):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"refresh": (0, 4)}

    before: Annotated[int, "positions before the block that are computed with it"] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("before", least=0)

    def begin(self, canvas: Canvas) -> np.ndarray:
        begin: np.ndarray = np.maximum(canvas.block_start - self.before, 0)
        return begin

    def stop(self, canvas: Canvas) -> np.ndarray:
        return canvas.end
