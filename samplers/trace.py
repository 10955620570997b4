"""The decode order of a request, kept in six bytes a position and opened up when asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Fed = range | tuple[int, ...]  # the positions one forward queried: a span, or any set


@dataclass(frozen=True, slots=True)
class TraceStep:
    """What one forward did to one row."""

    positions: tuple[int, ...]  # committed, ascending
    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    fed: tuple[int, ...]  # positions the forward queried


@dataclass(frozen=True)
class Trace:
    """Which forward committed each position, with what score, and which positions each forward queried.

    >>> trace.steps[0][3].positions        # doctest: +SKIP
    (17, 21)
    """

    tokens: np.ndarray  # [B, L] int64
    commit_step: np.ndarray  # [B, L] int16: forward number in the row, or GIVEN (-1), or NEVER (-2)
    commit_score: np.ndarray  # [B, L] float32
    lengths: np.ndarray  # [B] where each row ends
    fed: tuple[tuple[Fed, ...], ...]  # per row and forward: the positions queried
    clocks: tuple[tuple[int, ...], ...] = ()  # per row and forward: the schedule's clock, which may skip steps

    @cached_property
    def steps(self) -> tuple[tuple[TraceStep, ...], ...]:
        """steps[row][i]: what forward i committed and queried."""
        return tuple(tuple(self._steps(row)) for row in range(len(self.tokens)))

    def _steps(self, row: int) -> Sequence[TraceStep]:
        end = int(self.lengths[row])
        when = self.commit_step[row, :end]
        found = []
        for number, fed in enumerate(self.fed[row]):
            at = np.flatnonzero(when == number)
            found.append(
                TraceStep(
                    tuple(at.tolist()),
                    tuple(self.tokens[row, at].tolist()),
                    tuple(self.commit_score[row, at].tolist()),
                    tuple(fed),
                )
            )
        return found
