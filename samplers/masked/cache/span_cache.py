"""The base of caches that compute one span of positions, and all positions at refreshes.

Where a block stage moves the block, the span also covers what was committed or revised since the last forward: no
forward reads K/V of a replaced token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ...traits import Trait
from ..contracts import Cache, Canvas, QuerySpec
from .changes import LastTokens, elapsed


@dataclass
class State:
    """The tokens of the last forward where the block moves, and the counters of the published loops, [B] each.

    The counters are used only with `reference=true`.
    """

    tokens: LastTokens | None
    windows: np.ndarray  # forwards that computed the span only, idle ones included
    refreshed: np.ndarray  # whether the last forward computed all positions
    pending: np.ndarray  # whether a block was entered whose refresh is still due


@dataclass(frozen=True)
class SpanCache(Cache):
    """Computes everything when a block is entered and every `refresh` steps, else a span from the block's start."""

    commits_on_refresh: ClassVar[bool] = True  # untested, by the published loop for shifted families

    refresh: Annotated[int, "steps between full forwards: 0 only when a block is entered, 1 always"] = 0
    reference: Annotated[bool, "refresh and, in shifted families, commit in the order of the published loops"] = False

    def __post_init__(self) -> None:
        self.require("refresh", least=0)

    def start(self, canvas: Canvas) -> State:
        none = np.zeros(len(canvas), dtype=bool)
        tokens = LastTokens(canvas) if canvas.moving else None
        return State(tokens, np.zeros(len(canvas), dtype=np.int64), none, none)

    def stop(self, canvas: Canvas) -> np.ndarray:
        """[B]: the end of the span."""
        raise TypeError(f"{type(self).__name__} defines no span")

    def begin(self, canvas: Canvas) -> np.ndarray:
        """[B]: the start of the span."""
        return canvas.block_start

    @property
    def provides(self) -> frozenset[Trait]:
        traits = frozenset({Trait.STORES_KV, Trait.WHOLE_BLOCK})
        return traits | {Trait.KV_OF_TOKENS} if self.refresh in (0, 1) and not self.reference else traits

    @property
    def exact(self) -> str:
        return "greedy" if self.refresh == 1 and not self.reference else "relaxed"

    def full(self, canvas: Canvas, state: State) -> np.ndarray:
        """[B] bool: rows that need a full forward independent of `refresh`."""
        return canvas.block_started

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        if self.reference:
            return self._published(canvas, state)
        full_rows = self.full(canvas, state)
        if self.refresh:
            full_rows = full_rows | elapsed(canvas, self.refresh)
        start, stop = self.begin(canvas), self.stop(canvas)
        if state.tokens is not None:
            changed, order = state.tokens.changed(canvas), np.arange(canvas.length + 1)
            start = np.minimum(start, np.where(changed, order, canvas.length).min(1))
            stop = np.maximum(stop, np.where(changed, order + 1, 0).max(1))
        if full_rows.any():
            start, stop = np.where(full_rows, 0, start), np.where(full_rows, canvas.end, stop)
        return QuerySpec(start, stop)

    def _published(self, canvas: Canvas, state: State) -> QuerySpec:
        """The positions to compute, with iterations counted as the published loops do.

        dInfer counts a refresh and the window after it as one iteration, and makes that window even if the refresh
        finished the block. Fast-dLLM for Dream commits the block's first token on a refresh, untested, and nothing
        else.
        """
        state.windows = state.windows + (canvas.block_started & state.refreshed)
        full_rows = self.full(canvas, state)
        if self.refresh:
            full_rows = full_rows | ((state.windows % self.refresh == 0) & ~state.refreshed)
        state.windows, state.refreshed = state.windows + ~full_rows, full_rows
        start, stop = np.where(full_rows, 0, self.begin(canvas)), np.where(full_rows, canvas.end, self.stop(canvas))
        return QuerySpec(start, stop, must=full_rows if canvas.shift and self.commits_on_refresh else None)
