"""What a masked loop tells, while it runs and when all is done: events, and the trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..events import Finished, RowFinished, Started, Step
from ..trace import Trace
from .canvas import Canvas
from .layout import Queries

_HELD = ("tokens", "commit_step", "commit_score")


@dataclass(frozen=True, slots=True)
class Before:
    """What the canvas held before a step, [B, L + 1] each, on the host."""

    open: np.ndarray
    tokens: np.ndarray | None  # kept where committed tokens may change


class TraceRecorder:
    """Follows one canvas. Finished rows leave it; what they held waits here for the trace."""

    def __init__(self, canvas: Canvas, copies: int) -> None:
        self.canvas, self.copies = canvas, copies
        self.history: list[Queries] = []  # one a forward
        self.done: dict[int, RowFinished] = {}
        self.held = [getattr(canvas, name).cpu().clone() for name in _HELD]
        self.lengths = canvas.total
        self.clocks: list[tuple[int, ...]] = [()] * len(canvas)
        self.since = np.zeros(len(canvas), dtype=np.int64)  # [R] the first of these forwards that each row was in

    def started(self) -> Started:
        """The canvases before the first forward."""
        canvas = self.canvas
        return Started(
            canvas.tokens_host[:, : canvas.length].copy(), canvas.open_host[:, : canvas.length].copy(), canvas.prompt
        )

    def told(self, before: Before) -> Step:
        """The step just made; copies, so that it may be kept."""
        canvas = self.canvas
        tokens, still = canvas.tokens_host[:, : canvas.length].copy(), canvas.open_host[:, : canvas.length].copy()
        was_open = before.open[:, : canvas.length]
        revised = None
        if before.tokens is not None:
            revised = ~was_open & (still | (tokens != before.tokens[:, : canvas.length]))
        return Step(
            number=len(self.history) - 1,
            rows=canvas.rows,
            nfe=canvas.nfe,
            tokens=tokens,
            open=still,
            committed=was_open & ~still,
            settled=canvas.settled,
            revised=revised,
        )

    def leave(self, at: int, reason: str) -> RowFinished:
        """The row at index `at` is done."""
        canvas = self.canvas
        row = int(canvas.rows[at])
        for held, name in zip(self.held, _HELD, strict=True):
            held[row] = getattr(canvas, name)[at].cpu()
        clocks = canvas.clocks[at].tolist()
        self.clocks[row] = tuple(clocks[len(clocks) - int(canvas.nfe[at]) :])
        tokens = self.held[0][row, : self.lengths[row]].numpy().copy()
        self.done[row] = RowFinished(row, tokens, reason, int(canvas.nfe[at]))
        return self.done[row]

    def put(self, rows: np.ndarray, total: np.ndarray) -> None:
        """Rows of `total` tokens, in the canvas by now, take these numbers, [n], of rows that are done.

        Forwards before all rows go.
        """
        more = self.canvas.tokens.shape[1] - self.held[0].shape[1]
        self.held = [torch.nn.functional.pad(held, (0, more)) for held in self.held]
        self.lengths = self.lengths.copy()
        self.lengths[rows] = total
        self.since[rows] = len(self.history)
        for row in rows.tolist():
            self.done.pop(row, None)
        past = int(self.since[self.canvas.rows].min())
        del self.history[:past]
        self.since -= past

    def finished(self, row: int | None = None) -> Finished:
        """All rows are done, or this one, told as if it had been alone."""
        which = list(range(len(self.lengths))) if row is None else [row]
        lengths = self.lengths[which]
        longest = int(lengths.max())
        tokens, commit_step, commit_score = (held[which, :longest].numpy() for held in self.held)
        fed = tuple(self._fed(row) for row in which)
        ends = [self.done[row] for row in which]
        clocks = tuple(self.clocks[row] for row in which)
        return Finished(
            tokens=tokens,
            reasons=tuple(end.reason for end in ends),
            nfe=tuple(end.nfe for end in ends),
            forward_rows=tuple(end.nfe * self.copies for end in ends),
            tokens_fed=tuple(self.copies * sum(map(len, each)) for each in fed),
            trace=Trace(tokens, commit_step, commit_score, lengths, fed, clocks),
        )

    def _fed(self, row: int) -> tuple[range | tuple[int, ...], ...]:
        """The positions that each forward of the row queried."""
        places = ((queries, np.flatnonzero(queries.rows == row)) for queries in self.history[int(self.since[row]) :])
        return tuple(queries.of(int(at[0])) for queries, at in places if len(at))
