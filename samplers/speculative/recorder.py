"""The trace of a verify loop: which round committed each token, and what each round fed, drafted and accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from ..events import Finished, RowFinished
from ..host_transfer import download
from ..logprobs import LogprobRecorder
from ..pace import RoundCosts
from ..trace import PROMPT, Trace
from .contracts import Draft
from .forward import VerifyForward
from .sequences import Sequences

# One round: the live rows, the nodes of each, the forwards of a drafting model, and the verdict on the host.
Round = tuple[np.ndarray, np.ndarray, int, Mapping[str, np.ndarray]]


class TraceRecorder:
    """Records one request, including its finished rows, for the trace."""

    def __init__(self, text: Sequences, forced: Tensor | None = None, logprobs: LogprobRecorder | None = None) -> None:
        """`forced` [R, L]: the only allowed token at each position, -1 where several are allowed."""
        self.text, self.logprobs = text, logprobs
        self.forced_before: np.ndarray | None = None  # [R, L + 1] number of forced positions before each; None: none
        if forced is not None:
            self.forced_before = np.pad((download(forced) >= 0).cumsum(1), ((0, 0), (1, 0)))
        count = len(text)
        self.tokens = text.host.copy()
        self.commit_step, self.commit_score = text.commit_step.copy(), text.commit_score.copy()
        self.lengths = text.length.copy()
        self.finished_rows: dict[int, RowFinished] = {}
        self.rounds: list[Round] = []  # rounds that the counts below lack
        self._drafted: list[list[int]] = [[] for _ in range(count)]
        self._accepted: list[list[int]] = [[] for _ in range(count)]
        self.forced: list[list[int]] = [[] for _ in range(count)]
        self.draft_forwards = np.zeros(count, dtype=np.int64)
        self.deviation: np.ndarray | None = None  # [B], if the acceptance reports one
        self.reused = np.zeros(count, dtype=np.int64)  # [R] prompt tokens whose K/V come from the prefix cache
        self.first_forward = np.zeros(count, dtype=np.int64)  # [R] index of each row's first forward in this loop
        self.earlier: list[list[range | tuple[int, ...]]] = [
            [] for _ in range(count)
        ]  # positions fed before, in another loop

    @property
    def drafted(self) -> list[list[int]]:
        """The number of drafted tokens of each row at each round."""
        self.add_rounds()
        return self._drafted

    @property
    def accepted(self) -> list[list[int]]:
        """The number of accepted tokens of each row at each round."""
        self.add_rounds()
        return self._accepted

    def add_rounds(self) -> None:
        """Counts `rounds`."""
        for rows, sizes, forwards, summary in self.rounds:
            self._add(rows, forwards, summary, summary.get("deepest", sizes - 1), summary["count"])
        self.rounds.clear()

    def add_beside_forced(self, rows: np.ndarray, draft: Draft, summary: Mapping[str, np.ndarray]) -> None:
        """Counts one round of the live `rows`, already committed, if some positions have only one allowed token.

        These are always accepted: they count as neither drafted nor accepted.
        """
        deepest, accepted, first = summary.get("deepest", draft.sizes - 1), summary["count"], draft.base + 1
        forced = self._between(rows, first, self.text.length - first)
        for row, count in zip(rows.tolist(), forced.tolist(), strict=True):
            self.forced[row].append(count)
        deepest = deepest - self._between(rows, first, deepest)
        self._add(rows, draft.forwards, summary, deepest, accepted - self._between(rows, first, accepted))

    def _add(
        self,
        rows: np.ndarray,
        forwards: int,
        summary: Mapping[str, np.ndarray],
        deepest: np.ndarray,
        accepted: np.ndarray,
    ) -> None:
        for row, drafted, passed in zip(rows.tolist(), deepest.tolist(), accepted.tolist(), strict=True):
            self._drafted[row].append(drafted)
            self._accepted[row].append(passed)
        if forwards:
            self.draft_forwards[rows] += forwards
        if "deviation" in summary:
            if self.deviation is None:
                self.deviation = np.zeros(len(self._drafted))
            self.deviation[rows] += summary["deviation"]

    def _any_forced(self, which: Sequence[int]) -> bool:
        """Whether a position of these rows is forced."""
        return self.forced_before is not None and bool(self.forced_before[list(which), -1].any())

    def _between(self, rows: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """[n]: the number of forced ones among the `count` positions from `first` on."""
        assert self.forced_before is not None, "there are such positions"
        last = self.forced_before.shape[1] - 1
        forced_before = self.forced_before[rows, np.minimum(first, last)]
        result: np.ndarray = self.forced_before[rows, np.minimum(first + count, last)] - forced_before
        return result

    def finish_row(self, at: int, reason: str) -> RowFinished:
        """Records the row at index `at` as finished."""
        text = self.text
        row, end = int(text.rows[at]), int(text.length[at])
        self.lengths[row] = end
        for name, source in (("tokens", "host"), ("commit_step", "commit_step"), ("commit_score", "commit_score")):
            getattr(self, name)[row] = getattr(text, source)[at]
        self.finished_rows[row] = RowFinished(
            row,
            text.row(at).copy(),
            reason,
            int(text.nfe[at]),
            commit_step=text.commit_step[at, :end].copy(),
            logprobs=None if self.logprobs is None else self.logprobs.row(at, 0, end),
        )
        return self.finished_rows[row]

    def reserve(self, count: int) -> None:
        """Makes room for rows with indices below `count`."""
        more = count - len(self.lengths)
        if more <= 0:
            return
        self.add_rounds()
        for name in ("tokens", "commit_step", "commit_score"):
            setattr(self, name, np.pad(getattr(self, name), ((0, more), (0, 0))))
        counts = ["lengths", "draft_forwards", "first_forward", "reused"]
        for name in counts if self.deviation is None else [*counts, "deviation"]:
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        if self.forced_before is not None:
            self.forced_before = np.pad(self.forced_before, ((0, more), (0, 0)))
        if self.logprobs is not None:
            self.logprobs.reserve(count)
        for lists in (self.drafted, self.accepted, self.forced, self.earlier):
            lists += [[] for _ in range(more)]

    def put(self, forward: VerifyForward, rows: np.ndarray, other: TraceRecorder, others: VerifyForward) -> None:
        """Replaces finished rows at these indices [n] by the live rows of `other`; drops forwards that no row needs."""
        self.add_rounds()
        other.add_rounds()
        width = max(self.tokens.shape[1], other.tokens.shape[1])
        for name in ("tokens", "commit_step", "commit_score"):
            values = getattr(self, name)
            setattr(self, name, np.pad(values, ((0, 0), (0, width - values.shape[1]))))
        theirs = other.text.rows.tolist()
        for row, old, fed in zip(rows.tolist(), theirs, other.fed(theirs, others), strict=True):
            self.drafted[row], self.accepted[row] = other.drafted[old], other.accepted[old]
            self.forced[row] = other.forced[old]
            self.earlier[row] = fed
            self.finished_rows.pop(row, None)
        self._put_forced(rows, other, theirs)
        self.draft_forwards[rows] = other.draft_forwards[theirs]
        self.reused[rows] = other.reused[theirs]
        if self.deviation is not None:
            self.deviation[rows] = 0 if other.deviation is None else other.deviation[theirs]
        self.first_forward[rows] = len(forward.fed)
        past = min(int(self.first_forward[self.text.rows].min()), len(forward.fed) - 1)  # keep one
        del forward.fed[:past]
        self.first_forward -= past

    def _put_forced(self, rows: np.ndarray, other: TraceRecorder, theirs: Sequence[int]) -> None:
        """Gives `rows` the forced positions that the rows `theirs` of `other` have."""
        if self.forced_before is None and other.forced_before is None:
            return
        mine, incoming = (
            np.zeros((len(each.tokens), 1), dtype=np.int64) if each.forced_before is None else each.forced_before
            for each in (self, other)
        )
        width = max(mine.shape[1], incoming.shape[1])
        mine, incoming = (np.pad(each, ((0, 0), (0, width - each.shape[1])), mode="edge") for each in (mine, incoming))
        mine[rows] = incoming[theirs]
        self.forced_before = mine

    def fed(self, which: Sequence[int], forward: VerifyForward) -> list[list[range | tuple[int, ...]]]:
        """The positions that were fed for each of these rows in each forward."""
        result = {row: list(self.earlier[row]) for row in which}
        first_forward = {row: int(self.first_forward[row]) for row in which}
        for number, fed in enumerate(forward.fed):
            for at, row in enumerate(fed.rows.tolist()):
                if row in result and number >= first_forward[row]:
                    result[row].append(fed.of(at))
        return list(result.values())

    def finished(self, forward: VerifyForward, row: int | None = None, costs: RoundCosts | None = None) -> Finished:
        """The result of all rows, or of `row` as if it had been decoded alone, without padding."""
        self.add_rounds()
        which = list(range(len(self.tokens))) if row is None else [row]
        lengths = self.lengths[which]
        longest = int(lengths.max())
        fed = self.fed(which, forward)
        copies = forward.cache.copies
        commit_step = self.commit_step[which, :longest]
        commit_step[np.arange(longest) >= lengths[:, None]] = PROMPT  # padding
        ends = [self.finished_rows[row] for row in which]
        trace = Trace(
            self.tokens[which, :longest],
            commit_step,
            self.commit_score[which, :longest],
            lengths,
            tuple(map(tuple, fed)),
            drafted=tuple(tuple(self.drafted[row]) for row in which),
            accepted=tuple(tuple(self.accepted[row]) for row in which),
            forced=tuple(tuple(self.forced[row]) for row in which) if self._any_forced(which) else (),
            logprobs=None if self.logprobs is None else self.logprobs.of_rows(which, longest),
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
            reused=tuple(self.reused[which].tolist()),
            deviation=() if self.deviation is None else tuple(self.deviation[which].tolist()),
            rounds_s=None if costs is None or row is not None else (costs.seconds, costs.without_drafts),
        )
