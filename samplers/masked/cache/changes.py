"""Shared by caches that recompute changed positions: changes since the last forward, refreshes, conflicts."""

from __future__ import annotations

import numpy as np

from ...batching import RowState
from ...traits import Why
from ..contracts import Canvas


def last_clock(canvas: Canvas) -> np.ndarray:
    """[B]: the clock at the last forward; -1 before the first."""
    return canvas.clocks[:, -1] if canvas.clocks.shape[1] else np.full_like(canvas.step, -1)


def elapsed(canvas: Canvas, every: int, start: np.ndarray | int = 0) -> np.ndarray:
    """[B] bool: rows whose steps, counted from `start`, reached a multiple of `every` since the last forward."""
    if not every:
        return np.zeros(len(canvas), dtype=bool)
    reached: np.ndarray = (canvas.step - start) // every > (last_clock(canvas) - start) // every
    return reached


class LastTokens(RowState):
    """The tokens of the rows at the last forward."""

    per_row = ("tokens",)

    def __init__(self, canvas: Canvas) -> None:
        """Makes the state before the first forward."""
        self.tokens: np.ndarray = canvas.tokens_host.copy()  # [B, L + 1]
        self.fills = {"tokens": canvas.pad_id}

    def changed(self, canvas: Canvas) -> np.ndarray:
        """[B, L + 1] bool: the positions written or reopened since; stores the current tokens.

        They must be queried at the next forward, so that no position attends to K/V of replaced tokens.
        """
        changed: np.ndarray = self.tokens != canvas.tokens_host
        self.tokens = canvas.tokens_host.copy()
        return changed


def rows_predicting(positions: np.ndarray, shift: int) -> np.ndarray:
    """[B, L] bool: the positions whose outputs predict `positions` [B, L] bool; for position 0, itself."""
    if not shift:
        return positions.copy()
    rows: np.ndarray = np.roll(positions, -1, axis=1)
    rows[:, -1] = False
    rows[:, 0] |= positions[:, 0]
    return rows


# Conflicts of caches that reuse outputs of earlier forwards.
LEAVE_ONE_OUT_REUSED = Why(
    "{other} needs new leave-one-out predictions at every step, and {me} reuses old predictions",
    "leave {other} out, or use another cache",
)

# Of caches that compute some of the positions in each layer.
SOME_COMPUTED = Why(
    "{other} reads the attention of all positions, and {me} computes only some in each layer", "use another cache"
)

# Of caches for block-causal families.
FINISHED_BLOCKS = Why(
    "{me} keeps the K/V of finished blocks, which are final only in block-causal models",
    "this model also attends to what comes after a block: use dual, prefix, vicinity or dkv",
)
