"""Vicinity cache: the block and its neighbourhood are computed at every step, everything when a block is entered.

dInfer: An Efficient Inference Framework for Diffusion Language Models, https://arxiv.org/abs/2510.08666

    queried = [0, end) in the first `warmup` forwards of a request and when a block is entered,
              [block start - before, block end + after) otherwise

Only the block is predicted; its neighbours are queried since their K/V changes most with what the block commits.
`refresh` counts the steps of a row through all its blocks.
The published loop keeps no K/V of the warm-up: it queries everything once more after it, and again after the next
window where the block is not the first. `reference=true` does so too, and counts refreshes as `span_cache.py` says.
Exact: no; in block-causal families, where nothing after the block is seen, yes.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from ...registry import register
from ...traits import Trait
from ..contracts import Canvas
from .span_cache import SpanCache, State


@register("vicinity", checked="golden/llada reference:reference.naive_caches.vicinity")
class Vicinity(SpanCache):
    commits_on_refresh = False
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"warmup": (0, 4)}

    before: Annotated[int, "positions before the block that are computed with it"] = 16
    after: Annotated[int, "positions after the block that are computed with it"] = 16
    warmup: Annotated[int, "full forwards at the start of a request"] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("before", "after", "warmup", least=0)

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides - {Trait.KV_OF_TOKENS} if self.warmup else super().provides

    def full(self, canvas: Canvas, state: State) -> np.ndarray:
        if not self.reference:
            return canvas.block_started | (canvas.nfe < self.warmup)
        warm = canvas.nfe <= self.warmup
        state.pending = state.pending | (canvas.block_started & (canvas.nfe > 0))
        full_rows: np.ndarray = warm | (state.pending & (canvas.block_started | ~state.refreshed))
        state.pending = state.pending & (warm | ~full_rows)
        return full_rows

    def begin(self, canvas: Canvas) -> np.ndarray:
        begin: np.ndarray = np.maximum(canvas.block_start - self.before, 0)
        return begin

    def stop(self, canvas: Canvas) -> np.ndarray:
        stop: np.ndarray = np.minimum(canvas.block_end + self.after, canvas.end)
        return stop
