"""The decode order of a request: stored in eight bytes per position, and expanded on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .logprobs import TokenLogprobs

PROMPT = -1  # commit_step of a token that the request gave
UNCOMMITTED = -2  # commit_step of a position that was never committed

Fed = range | tuple[int, ...]  # the positions that one forward computed: a span, or any set


@dataclass(frozen=True, slots=True)
class TraceStep:
    """The effect of one forward on one row."""

    positions: tuple[int, ...]  # committed, ascending
    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    fed: tuple[int, ...]  # positions the forward computed
    clock: int  # the schedule's clock at the forward


@dataclass(frozen=True, slots=True)
class Commit:
    """How one position got its token. Without a forward, `forward` and `clock` are PROMPT (-1) or UNCOMMITTED (-2)."""

    token: int
    forward: int  # number of the forward in its row, from 0
    clock: int  # the schedule's clock at that forward
    score: float


@dataclass(frozen=True)
class Trace:
    """The forward that committed each position, with its score, and the positions that each forward computed.

    `commit_step` and `commit_score` are stored and saved, eight bytes per position; the rest is derived from them.

    >>> trace.steps[0][3].positions        # doctest: +SKIP
    (17, 21)
    >>> trace.at(0, 17)                    # doctest: +SKIP
    Commit(token=8, forward=3, clock=5, score=0.97)
    """

    tokens: np.ndarray  # [B, L] int64
    commit_step: np.ndarray  # [B, L] int32: forward number in the row, PROMPT (-1), or UNCOMMITTED (-2)
    commit_score: np.ndarray  # [B, L] float32
    lengths: np.ndarray  # [B] where each row ends
    fed: tuple[tuple[Fed, ...], ...]  # per row and forward: the positions computed
    clocks: tuple[tuple[int, ...], ...] = ()  # per row and forward: the schedule's clock; () counts 0, 1, ...
    # Per row and forward of the verify loop: drafted tokens (of a tree: of the deepest path), and accepted ones.
    drafted: tuple[tuple[int, ...], ...] = ()
    accepted: tuple[tuple[int, ...], ...] = ()
    forced: tuple[tuple[int, ...], ...] = ()  # committed tokens without an alternative, in neither of these; (): none
    logprobs: TokenLogprobs | None = None  # log-probabilities at [B, L] positions; None if the request asks for none
    # [B, L] int32, if edits move tokens: a token's serial number is its first position; that of a mask that an edit
    # inserted is at least the row's length. All other fields use final positions.
    serial: np.ndarray | None = None

    @property
    def forward(self) -> np.ndarray:
        """[B, L] int64: the forward of the row that committed each position; PROMPT or UNCOMMITTED elsewhere."""
        return self.commit_step.astype(np.int64)

    @cached_property
    def clock(self) -> np.ndarray:
        """[B, L] int64: the schedule's clock at that forward; PROMPT or UNCOMMITTED where there was none."""
        clock = self.forward
        for row, clocks in enumerate(self.clocks):
            committed = clock[row] >= 0
            clock[row, committed] = np.asarray(clocks, dtype=np.int64)[clock[row, committed]]
        return clock

    @property
    def gained(self) -> list[list[int]]:
        """Per row and forward: the number of committed tokens, without `forced` ones."""
        counts = []
        for row, fed in enumerate(self.fed):
            when = self.commit_step[row]
            counts.append(np.bincount(when[when >= 0], minlength=len(fed)))
        if self.forced:
            counts = [count - np.array(forced) for count, forced in zip(counts, self.forced, strict=True)]
        return [count.tolist() for count in counts]

    def at(self, row: int, position: int) -> Commit:
        """The commit of `position` of `row`."""
        if not 0 <= position < self.lengths[row]:
            raise IndexError(f"row {row} has positions 0..{self.lengths[row] - 1}, got {position}")
        here = row, position
        return Commit(
            int(self.tokens[here]), int(self.forward[here]), int(self.clock[here]), float(self.commit_score[here])
        )

    @cached_property
    def steps(self) -> tuple[tuple[TraceStep, ...], ...]:
        """steps[row][i]: the tokens that forward i committed and the positions that it computed."""
        return tuple(tuple(self._steps(row)) for row in range(len(self.tokens)))

    def _steps(self, row: int) -> Sequence[TraceStep]:
        end = int(self.lengths[row])
        when = self.commit_step[row, :end]
        clocks = self.clocks[row] if self.clocks else range(len(self.fed[row]))
        steps = []
        for number, (fed, clock) in enumerate(zip(self.fed[row], clocks, strict=True)):
            at = np.flatnonzero(when == number)
            steps.append(
                TraceStep(
                    tuple(at.tolist()),
                    tuple(self.tokens[row, at].tolist()),
                    tuple(self.commit_score[row, at].tolist()),
                    tuple(fed),
                    clock,
                )
            )
        return steps
