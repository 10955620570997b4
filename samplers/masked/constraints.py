"""Positions whose tokens depend on each other: what each may take narrows with what the others have been given.

Before a forward every position of such a gap has the set of tokens that can stand beside those committed. What a step
writes to a gap is checked in the order of scores: a token that cannot stand beside the ones already taken waits for a
later step. The first always can, so that a row with an open position still gains one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..ops.allowed import AllowedRows
from ..request import ConstrainedSpan
from .canvas import Canvas, Revision, Update


class ConstrainedSpans:
    """The gaps of every live row."""

    def __init__(self, gaps: Sequence[tuple[ConstrainedSpan, ...]], rows: int) -> None:
        self.each: list[tuple[ConstrainedSpan, ...]] = list(gaps) or [()] * rows

    def __bool__(self) -> bool:
        """Whether any row has a gap."""
        return any(self.each)

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        self.each = [self.each[at] for at in rows.tolist()]

    def put(self, where: np.ndarray, other: ConstrainedSpans) -> None:
        """Puts the rows of `other` in place of those at `where`."""
        for at, gaps in zip(where.tolist(), other.each, strict=True):
            self.each[at] = gaps

    def narrow(self, allowed: AllowedRows, canvas: Canvas) -> AllowedRows:
        """`allowed` with the sets that hold beside what `canvas` has committed."""
        rows: list[int] = []
        positions: list[int] = []
        sets: list[np.ndarray] = []
        for row, gap in self._gaps():
            tokens = _committed(gap, canvas, row)
            if not (canvas.revises or (tokens < 0).any()):
                continue
            own = gap.automaton.sets(tokens)
            rows += [row] * len(own)
            positions += range(gap.start, gap.start + len(own))
            sets.append(own)
        return allowed.with_sets(rows, positions, np.concatenate(sets)) if sets else allowed

    def consistent(
        self, canvas: Canvas, chosen: Update, revision: Revision | None, fill: Update | None
    ) -> tuple[Update, Revision | None, Update | None]:
        """What a step writes, without the tokens that cannot stand beside others of their gap."""
        block, whole = canvas.window_host, np.broadcast_to(np.arange(canvas.length + 1), canvas.open_host.shape)
        rewrite = None if revision is None else revision.rewrite
        writings = [_Candidates(fill, whole), _Candidates(chosen, block), _Candidates(rewrite, block)]
        for row, gap in self._gaps():
            tokens = _committed(gap, canvas, row)
            for candidates in writings:
                is_open = candidates is not writings[2]  # rewrites change committed tokens
                for column, index, token in candidates.inside(row, gap):
                    if (tokens[index] < 0) != is_open:
                        continue
                    before, tokens[index] = tokens[index], token
                    if not gap.automaton.allows(tokens):
                        tokens[index] = before
                        candidates.which[row, column] = False
        fill_, chosen_, rewrite_ = (candidates.writing() for candidates in writings)
        assert chosen_ is not None, "it has been passed"
        return chosen_, None if revision is None else replace(revision, rewrite=rewrite_), fill_

    def _gaps(self) -> Iterator[tuple[int, ConstrainedSpan]]:
        """Every gap with its live row."""
        return ((row, gap) for row, gaps in enumerate(self.each) for gap in gaps)


class _Candidates:
    """One writing on the host, whose columns stand for `positions` [B, N]."""

    def __init__(self, value: Update | None, positions: np.ndarray) -> None:
        self.value, self.positions = value, positions
        if value is not None:
            self.which = value.which.cpu().numpy().copy()
            self.tokens, self.scores = value.tokens.cpu().numpy(), value.scores.cpu().numpy()

    def inside(self, row: int, gap: ConstrainedSpan) -> list[tuple[int, int, int]]:
        """Of what it writes to a gap: column, index in the gap, token; the highest score first, then the first."""
        if self.value is None:
            return []
        index = self.positions[row] - gap.start
        columns = np.flatnonzero(self.which[row] & (index >= 0) & (index < gap.automaton.length))
        columns = columns[np.argsort(-self.scores[row, columns], kind="stable")]
        return [(int(at), int(index[at]), int(self.tokens[row, at])) for at in columns]

    def writing(self) -> Update | None:
        if self.value is None:
            return None
        which: Tensor = torch.from_numpy(self.which).to(self.value.which.device)
        return replace(self.value, which=which)


def _committed(gap: ConstrainedSpan, canvas: Canvas, row: int) -> np.ndarray:
    """[n] the tokens of a gap, -1 where open."""
    span = slice(gap.start, gap.start + gap.automaton.length)
    return np.where(canvas.open_host[row, span], -1, canvas.tokens_host[row, span])
