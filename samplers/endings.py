"""Ends rows by `Request.stops`, such as stop strings, and remembers how much of each row was checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .batching import RowState
from .request import Ending


class Endings(RowState):
    """The stop conditions of each live row, or None."""

    per_row = ("each", "known")

    def __init__(self, stops: Sequence[Ending | None], rows: int) -> None:
        self.each: list[Ending | None] = list(stops) or [None] * rows
        self.known = np.zeros(rows, dtype=np.int64)  # generated tokens already checked, which do not end the row

    def find(self, tokens: Sequence[np.ndarray]) -> np.ndarray:
        """[B]: how many of each row's generated `tokens`, all final, remain when it ends; -1 where it continues."""
        counts = np.full(len(self.each), -1)
        for at, ending in enumerate(self.each):
            if ending is None or len(tokens[at]) <= self.known[at]:
                continue
            count = ending.first(tokens[at].tolist(), int(self.known[at]))
            if count is None:
                self.known[at] = len(tokens[at])
            else:
                counts[at] = count
        return counts

    def __bool__(self) -> bool:
        """Whether any row has a stop condition."""
        return any(ending is not None for ending in self.each)
