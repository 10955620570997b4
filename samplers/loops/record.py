"""What a masked loop tells, while it runs and when all is done: events, and the trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pardec.samplers.canvas import Canvas
from pardec.samplers.events import Finished, RowFinished, Started, Step
from pardec.samplers.loops.layout import Queries
from pardec.samplers.trace import Trace

_HELD = ("tokens", "commit_step", "commit_score")


@dataclass(frozen=True, slots=True)
class Before:
    """What the canvas held before a step, [B, L + 1] each, on the host."""

    open: np.ndarray
    tokens: np.ndarray | None  # kept where committed tokens may change


class Record:
    """Follows one canvas. Finished rows leave it; what they held waits here for the trace."""

    def __init__(self, canvas: Canvas, copies: int) -> None:
        self.canvas, self.copies = canvas, copies
        self.history: list[Queries] = []  # one a forward
        self.done: dict[int, RowFinished] = {}
        self.held = [getattr(canvas, name).cpu().clone() for name in _HELD]
        self.lengths = canvas.total
        self.clocks: list[tuple[int, ...]] = [()] * len(canvas)

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
        self.clocks[row] = tuple(canvas.clocks[at].tolist())
        tokens = self.held[0][row, : self.lengths[row]].numpy().copy()
        self.done[row] = RowFinished(row, tokens, reason, int(canvas.nfe[at]))
        return self.done[row]

    def finished(self) -> Finished:
        """All rows are done."""
        tokens, commit_step, commit_score = (held[:, :-1].numpy() for held in self.held)
        count = len(tokens)
        fed: list[list[range | tuple[int, ...]]] = [[] for _ in range(count)]
        for queries in self.history:
            for at, row in enumerate(queries.rows):
                fed[row].append(queries.of(at))
        ends = [self.done[row] for row in range(count)]
        return Finished(
            tokens=tokens,
            reasons=tuple(end.reason for end in ends),
            nfe=tuple(end.nfe for end in ends),
            forward_rows=tuple(end.nfe * self.copies for end in ends),
            tokens_fed=tuple(self.copies * sum(map(len, row)) for row in fed),
            trace=Trace(tokens, commit_step, commit_score, self.lengths, tuple(map(tuple, fed)), tuple(self.clocks)),
        )
