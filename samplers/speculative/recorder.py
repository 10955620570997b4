"""What the verify loop tells when all is done: which round committed each token, what it fed, drafted and accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from ..events import Finished, RowFinished
from ..masked.canvas import GIVEN
from ..trace import Trace
from .contracts import Draft
from .forward import VerifyForward
from .sequences import Sequences


class TraceRecorder:
    """Follows one request. Finished rows leave; what they held waits here for the trace."""

    def __init__(self, text: Sequences, forced: Tensor | None = None) -> None:
        """`forced` [R, L] is -1 where a position of the request is not left a single token."""
        self.text = text
        self.before: np.ndarray | None = None  # [R, L + 1] forced positions before each
        if forced is not None:
            self.before = np.pad((forced.cpu().numpy() >= 0).cumsum(1), ((0, 0), (1, 0)))
        count = len(text)
        self.tokens = text.host.copy()
        self.commit_step, self.commit_score = text.commit_step.copy(), text.commit_score.copy()
        self.lengths = text.length.copy()
        self.done: dict[int, RowFinished] = {}
        self.drafted: list[list[int]] = [[] for _ in range(count)]
        self.accepted: list[list[int]] = [[] for _ in range(count)]
        self.forced: list[list[int]] = [[] for _ in range(count)]
        self.draft_forwards = np.zeros(count, dtype=np.int64)
        self.deviation: np.ndarray | None = None  # [B], once the acceptance tells of any
        self.since = np.zeros(count, dtype=np.int64)  # [R] the first forward of this loop that each row took part in
        self.earlier: list[list[range | tuple[int, ...]]] = [[] for _ in range(count)]  # fed before, in another loop

    def add(self, rows: np.ndarray, draft: Draft, read: Mapping[str, np.ndarray]) -> None:
        """One round of the live `rows`, already committed; `read` is what the host knows of its verdict.

        Positions that are left a single token are passed for certain: they count as neither drafted nor accepted.
        """
        deepest = read.get("deepest", draft.sizes - 1)
        accepted, first = read["count"], draft.base + 1
        if self.before is not None:
            forced = self._between(rows, first, self.text.length - first)
            deepest = deepest - self._between(rows, first, deepest)
            accepted = accepted - self._between(rows, first, accepted)
            for row, count in zip(rows.tolist(), forced.tolist(), strict=True):
                self.forced[row].append(count)
        for row, drafted, taken in zip(rows.tolist(), deepest.tolist(), accepted.tolist(), strict=True):
            self.drafted[row].append(drafted)
            self.accepted[row].append(taken)
        self.draft_forwards[rows] += draft.forwards
        if "deviation" in read:
            if self.deviation is None:
                self.deviation = np.zeros(len(self.drafted))
            self.deviation[rows] += read["deviation"]

    def _between(self, rows: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """[n] how many of the `count` positions from `first` on are forced."""
        assert self.before is not None, "there are such positions"
        last = self.before.shape[1] - 1
        before = self.before[rows, np.minimum(first, last)]
        found: np.ndarray = self.before[rows, np.minimum(first + count, last)] - before
        return found

    def leave(self, at: int, reason: str) -> RowFinished:
        """The row at index `at` is done."""
        text = self.text
        row, end = int(text.rows[at]), int(text.length[at])
        self.lengths[row] = end
        for kept, live in (("tokens", "host"), ("commit_step", "commit_step"), ("commit_score", "commit_score")):
            getattr(self, kept)[row] = getattr(text, live)[at]
        self.done[row] = RowFinished(row, text.row(at).copy(), reason, int(text.nfe[at]))
        return self.done[row]

    def put(self, forward: VerifyForward, rows: np.ndarray, other: TraceRecorder, others: VerifyForward) -> None:
        """The live rows of `other` take these numbers, [n], of rows that are done. Forwards before all rows go."""
        width = max(self.tokens.shape[1], other.tokens.shape[1])
        for name in ("tokens", "commit_step", "commit_score"):
            held = getattr(self, name)
            setattr(self, name, np.pad(held, ((0, 0), (0, width - held.shape[1]))))
        theirs = other.text.rows.tolist()
        for row, old, fed in zip(rows.tolist(), theirs, other.fed(theirs, others), strict=True):
            self.drafted[row], self.accepted[row] = other.drafted[old], other.accepted[old]
            self.earlier[row] = fed
            self.done.pop(row, None)
        self.draft_forwards[rows] = other.draft_forwards[theirs]
        if self.deviation is not None:
            self.deviation[rows] = 0 if other.deviation is None else other.deviation[theirs]
        self.since[rows] = len(forward.fed)
        past = min(int(self.since[self.text.rows].min()), len(forward.fed) - 1)  # one stays: the prompt has been fed
        del forward.fed[:past]
        self.since -= past

    def fed(self, which: Sequence[int], forward: VerifyForward) -> list[list[range | tuple[int, ...]]]:
        """The positions that each forward of each of these rows asked."""
        found = {row: list(self.earlier[row]) for row in which}
        since = {row: int(self.since[row]) for row in which}
        for number, fed in enumerate(forward.fed):
            for at, row in enumerate(fed.rows.tolist()):
                if row in found and number >= since[row]:
                    found[row].append(fed.of(at))
        return list(found.values())

    def finished(self, forward: VerifyForward, row: int | None = None) -> Finished:
        """All rows are done, or this one, told as if it had been alone: its own padding is nobody's."""
        which = list(range(len(self.tokens))) if row is None else [row]
        lengths = self.lengths[which]
        longest = int(lengths.max())
        fed = self.fed(which, forward)
        copies = forward.cache.copies
        commit_step = self.commit_step[which, :longest]
        commit_step[np.arange(longest) >= lengths[:, None]] = GIVEN  # padding
        ends = [self.done[row] for row in which]
        trace = Trace(
            self.tokens[which, :longest],
            commit_step,
            self.commit_score[which, :longest],
            lengths,
            tuple(map(tuple, fed)),
            drafted=tuple(tuple(self.drafted[row]) for row in which),
            accepted=tuple(tuple(self.accepted[row]) for row in which),
            forced=() if self.before is None else tuple(tuple(self.forced[row]) for row in which),
        )
        return Finished(
            tokens=trace.tokens,
            reasons=tuple(end.reason for end in ends),
            nfe=tuple(end.nfe for end in ends),
            forward_rows=tuple(end.nfe * copies for end in ends),
            tokens_fed=tuple(sum(map(len, row)) * copies for row in fed),
            trace=trace,
            padding=forward.padded * copies if row is None else 0,
            draft_forwards=tuple(self.draft_forwards[which].tolist()),
            deviation=() if self.deviation is None else tuple(self.deviation[which].tolist()),
        )
