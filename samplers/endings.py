"""The rows that end where their text says so: what is asked of `Request.stops`, and how far each row has been read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .request import Ending


class Endings:
    """One entry a live row: what may end it, or None."""

    def __init__(self, stops: Sequence[Ending | None], rows: int) -> None:
        self.each: list[Ending | None] = list(stops) or [None] * rows
        self.known = np.zeros(rows, dtype=np.int64)  # generated tokens that have been read, and end nothing

    def within(self, tokens: Sequence[np.ndarray]) -> np.ndarray:
        """[B] how many of each row's generated `tokens`, which are final, stand when it ends; -1 where it goes on."""
        found = np.full(len(self.each), -1)
        for at, ending in enumerate(self.each):
            if ending is None or len(tokens[at]) <= self.known[at]:
                continue
            count = ending.first(tokens[at].tolist(), int(self.known[at]))
            if count is None:
                self.known[at] = len(tokens[at])
            else:
                found[at] = count
        return found

    def __bool__(self) -> bool:
        """Whether any row may be ended so."""
        return any(ending is not None for ending in self.each)

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        self.each = [self.each[at] for at in rows.tolist()]
        self.known = self.known[rows]

    def put(self, where: np.ndarray, other: Endings) -> None:
        """The rows of `other` in place of those at `where`."""
        for at, ending in zip(where.tolist(), other.each, strict=True):
            self.each[at] = ending
        self.known[where] = other.known
