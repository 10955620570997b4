"""Records a masked decode: its events, its trace, and the log-probabilities of the committed tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..events import Finished, RowFinished, Started, Step
from ..host_transfer import download, to_host, upload
from ..logprobs import LogprobRecorder
from ..ops.chunked_distribution import CHUNK_BYTES
from ..ops.distribution import split
from ..trace import UNCOMMITTED, Trace
from .canvas import Canvas
from .contracts import Decision, Evidence, Proposal
from .predict import RawDistribution
from .query_plan import Queries

_RECORDED = ("tokens", "commit_step", "commit_score", "serial")


@dataclass(frozen=True, slots=True)
class Before:
    """The canvas before a step: arrays [B, L + 1] on the host."""

    open: np.ndarray
    tokens: np.ndarray | None  # None if committed tokens cannot change


class TraceRecorder:
    """Records one canvas for the trace; keeps the contents of rows that have left the canvas."""

    def __init__(self, canvas: Canvas, copies: int, logprobs: LogprobRecorder | None = None) -> None:
        self.canvas, self.copies, self.logprobs = canvas, copies, logprobs
        self.history: list[Queries] = []  # one per forward
        self.ends: dict[int, RowFinished] = {}
        self.contents = [torch.from_numpy(download(getattr(canvas, name)).copy()) for name in _RECORDED]
        self.lengths = canvas.total
        self.clocks: list[tuple[int, ...]] = [()] * len(canvas)
        self.reused = np.zeros(len(canvas), dtype=np.int64)  # [R] prompt tokens whose K/V come from the prefix cache
        self.first_forward = np.zeros(len(canvas), dtype=np.int64)  # [R] index into `history`, per row

    def started(self) -> Started:
        """The `Started` event: the canvases before the first forward."""
        canvas, order = self.canvas, np.arange(self.canvas.length)
        later = (order >= canvas.total[:, None]) & (order < canvas.planned[:, None])  # where rows may grow
        open_ = canvas.open_host[:, : canvas.length] | later
        return Started(canvas.tokens_host[:, : canvas.length].copy(), open_, canvas.prompt)

    def step(self, before: Before, number: int | None = None) -> Step:
        """The event of the last step, or of step `number`, whose tokens were read late; its arrays are copies."""
        canvas = self.canvas
        tokens, open_ = canvas.tokens_host[:, : canvas.length].copy(), canvas.open_host[:, : canvas.length].copy()
        was_open = before.open[:, : canvas.length]
        revised = None
        if before.tokens is not None:
            revised = ~was_open & (open_ | (tokens != before.tokens[:, : canvas.length]))
        return Step(
            number=len(self.history) - 1 if number is None else number,
            rows=canvas.rows,
            nfe=canvas.nfe,
            tokens=tokens,
            open=open_,
            committed=was_open & ~open_ & ~canvas.given_host[:, : canvas.length],  # without new padding
            settled=canvas.settled,
            revised=revised,
            serial=canvas.serials()[:, : canvas.length].copy() if canvas.moves else None,
        )

    def finish_row(self, at: int, reason: str) -> RowFinished:
        """Records that the row at index `at` is done; returns its event."""
        canvas = self.canvas
        row = int(canvas.rows[at])
        leaving = to_host({name: getattr(canvas, name)[at] for name in _RECORDED})
        for values, name in zip(self.contents, _RECORDED, strict=True):
            values[row] = torch.from_numpy(leaving[name])
        clocks = canvas.clocks[at].tolist()
        self.clocks[row] = tuple(clocks[len(clocks) - int(canvas.nfe[at]) :])
        end = int(self.lengths[row])
        tokens, commit_step = (values[row, :end].numpy().copy() for values in self.contents[:2])
        logprobs = None if self.logprobs is None else self.logprobs.row(at, 0, end)
        self.ends[row] = RowFinished(
            row, tokens, reason, int(canvas.nfe[at]), commit_step=commit_step, logprobs=logprobs
        )
        return self.ends[row]

    def reserve(self, count: int) -> None:
        """Makes room for rows with indices below `count`."""
        more = count - len(self.lengths)
        if more <= 0:
            return
        self.contents = [torch.nn.functional.pad(values, (0, 0, 0, more)) for values in self.contents]
        for name in ("lengths", "first_forward", "reused"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self.clocks += [()] * more
        if self.logprobs is not None:
            self.logprobs.reserve(count)

    def put(self, rows: np.ndarray, total: np.ndarray) -> None:
        """Gives rows of `total` tokens, which are in the canvas already, the indices `rows` [n] of finished rows.

        Forwards that no row took part in are dropped.
        """
        more = self.canvas.tokens.shape[1] - self.contents[0].shape[1]
        self.contents = [torch.nn.functional.pad(values, (0, more)) for values in self.contents]
        self.lengths = self.lengths.copy()
        self.lengths[rows] = total
        self.first_forward[rows] = len(self.history)
        self.reused[rows] = 0
        for row in rows.tolist():
            self.ends.pop(row, None)
        past = int(self.first_forward[self.canvas.rows].min())
        del self.history[:past]
        self.first_forward -= past

    def finished(self, row: int | None = None) -> Finished:
        """The final event, with the results of all rows, or of `row` as if it had been decoded alone."""
        which = list(range(len(self.lengths))) if row is None else [row]
        lengths = self.lengths[which]
        longest = int(lengths.max())
        tokens, commit_step, commit_score, serial = (values[which, :longest].numpy() for values in self.contents)
        each = [self._fed(row) for row in which]  # for every hypothesis of the row, per forward
        fed = tuple(tuple(hypotheses[0] for hypotheses in forwards) for forwards in each)
        ends = [self.ends[row] for row in which]
        clocks = tuple(self.clocks[row] for row in which)
        logprobs = None if self.logprobs is None else self.logprobs.of_rows(which, longest)
        return Finished(
            tokens=tokens,
            reasons=tuple(end.reason for end in ends),
            nfe=tuple(end.nfe for end in ends),
            forward_rows=tuple(self.copies * sum(map(len, forwards)) for forwards in each),
            tokens_fed=tuple(
                self.copies * sum(len(queries) for hypotheses in forwards for queries in hypotheses)
                for forwards in each
            ),
            trace=Trace(
                tokens,
                commit_step,
                commit_score,
                lengths,
                fed,
                clocks,
                logprobs=logprobs,
                serial=serial if self.canvas.moves else None,
            ),
            reused=tuple(self.reused[which].tolist()),
        )

    def _fed(self, row: int) -> list[list[range | tuple[int, ...]]]:
        """The positions that each forward computed for each hypothesis of the row, by default the row alone."""
        history = self.history[int(self.first_forward[row]) :]
        each = ((queries, np.flatnonzero(queries.rows == row).tolist()) for queries in history)
        return [[queries.of(at) for at in hypotheses] for queries, hypotheses in each if hypotheses]


class CommittedLogprobs:
    """The log-probabilities of tokens that a step committed, filled or rewrote."""

    def __init__(self, canvas: Canvas, raw: RawDistribution, logprobs: LogprobRecorder) -> None:
        self.canvas, self.raw, self.logprobs = canvas, raw, logprobs
        self.window = canvas.window  # [B, W] the block of the forward, which a commit may leave

    def decide(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        """Called before the commit: keeps the positions of the block."""
        self.window = self.canvas.window
        return decision

    def record(self, decision: Decision) -> None:
        """Called after the commit: records them where a token was written."""
        canvas, logprobs = self.canvas, self.logprobs
        when = download(canvas.commit_step)
        if canvas.revises:
            row, position = (when == UNCOMMITTED).nonzero()
            logprobs.clear(canvas.rows[row], position)
        now = when == (canvas.nfe - 1)[:, None]
        sources = [(self.window, self.raw.of_block())]
        if decision.columns is not None:  # rows that are filled commit nothing else
            sources.insert(0, (decision.columns, self.raw.at(decision.columns)))
        for columns, distribution in sources:
            positions = download(columns)
            committed = np.flatnonzero(np.take_along_axis(now, positions, 1))
            for flat in split(committed, CHUNK_BYTES // (4 * distribution.vocab)):
                row, position = flat // positions.shape[1], positions.reshape(-1)[flat]
                tokens = upload(canvas.tokens_host[row, position], columns.device)
                logprobs.add(canvas.rows[row], position, tokens, distribution.logits_at(flat))
                now[row, position] = False
