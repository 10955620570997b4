"""Which positions the live rows are asked with where a query stage leaves some out, and the slots that they take.

What is visible stands in the first slots of a row, in the order of positions, so that a forward reads no others. Keys
carry the angles of their positions, and attention does not depend on the order of slots.
"""

from __future__ import annotations

import numpy as np

from .canvas import Canvas


class VisiblePositions:
    """Of each live row; column L is a bin.

    Attributes:
        slots: [B, L + 1] the slot of each visible position, -1 for others.
        moved: [B, L + 1] bool: visible positions that had another slot, or none, before the last `update`.
    """

    def __init__(self, canvas: Canvas) -> None:
        self.canvas = canvas
        self.slots: np.ndarray = np.full(canvas.open_host.shape, -1)
        self.moved: np.ndarray = np.zeros(canvas.open_host.shape, dtype=bool)

    @property
    def which(self) -> np.ndarray:
        """[B, L] bool: the visible positions."""
        visible: np.ndarray = self.slots[:, :-1] >= 0
        return visible

    @property
    def counts(self) -> np.ndarray:
        """[B] how many there are."""
        counts: np.ndarray = (self.slots >= 0).sum(1)
        return counts

    def update(self, visible: np.ndarray) -> None:
        """From now on these [B, L] are, with what is not open, and all up to the end of the active block."""
        canvas, order = self.canvas, np.arange(self.canvas.length)
        visible = visible | ~canvas.open_host[:, :-1] | (order < canvas.hi[:, None])
        visible = np.pad(visible & (order < canvas.end[:, None]), ((0, 0), (0, 1)))
        slots = np.where(visible, visible.cumsum(1) - 1, -1)
        self.moved, self.slots = visible & (slots != self.slots), slots

    def queried(self, mask: np.ndarray, new: np.ndarray) -> np.ndarray:
        """[B, L] bool: those of `mask` [B, L] that are visible, all that moved, and all of the rows `new` [B]."""
        queried: np.ndarray = self.which & (mask | self.moved[:, :-1] | new[:, None])
        return queried

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        self.slots, self.moved = self.slots[rows], self.moved[rows]

    def put(self) -> None:
        """Makes room for the columns that the canvas has grown by; the first forward of rows that join is full."""
        more = self.canvas.tokens.shape[1] - self.slots.shape[1]
        self.slots = np.pad(self.slots, ((0, 0), (0, more)), constant_values=-1)
        self.moved = np.pad(self.moved, ((0, 0), (0, more)))
