"""What the caches share that ask by what has changed: since when, and when everything is due again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..contracts import Canvas


def last_clock(canvas: Canvas) -> np.ndarray:
    """The clock at the last forward, [B]; -1 before the first."""
    return canvas.clocks[:, -1] if canvas.clocks.shape[1] else np.full_like(canvas.step, -1)


def elapsed(canvas: Canvas, every: int, start: np.ndarray | int = 0) -> np.ndarray:
    """[B] bool: a multiple of `every` steps since `start` has come since the last forward, skipped or not."""
    if not every:
        return np.zeros(len(canvas), dtype=bool)
    due: np.ndarray = (canvas.step - start) // every > (last_clock(canvas) - start) // every
    return due


@dataclass
class Since:
    """How the rows stood at the last forward."""

    tokens: np.ndarray  # [B, L + 1] what stood there

    @classmethod
    def of(cls, canvas: Canvas) -> Since:
        """Before the first forward."""
        return cls(canvas.tokens_host.copy())

    def put(self, where: np.ndarray, other: Since) -> None:
        """The rows of `other`, whose canvas is as long or longer, in place of the live rows at `where`."""
        more = other.tokens.shape[1] - self.tokens.shape[1]
        self.tokens = np.pad(self.tokens, ((0, 0), (0, more)), mode="edge")  # the bin holds what pads
        self.tokens[where] = other.tokens

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        self.tokens = self.tokens[rows]

    def changed(self, canvas: Canvas) -> np.ndarray:
        """[B, L + 1] bool: what was written since, and what was taken back; notes how the rows stand now.

        Asked again at the next forward, a position is never seen by the K/V of what stood there before.
        """
        changed: np.ndarray = self.tokens != canvas.tokens_host
        self.tokens = canvas.tokens_host.copy()
        return changed
