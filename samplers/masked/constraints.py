"""A request's constraints on tokens: allowed sets, biased, repeated and early end tokens, constrained spans.

Positions of a constrained span depend on each other: every committed token narrows the tokens allowed at the others.
Before a forward every position of such a span has the set of tokens that can stand beside those committed. What a step
writes to a span is checked in the order of scores: a token that cannot stand beside the ones already taken waits for a
later step. The first always can, so that a row with an open position still gains one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ..batching import RowState
from ..host_transfer import download, upload
from ..ops.allowed import AllowedRows
from ..ops.penalties import bias_vector, counts_elsewhere, penalize, subtract_counts, token_counts, without_ends
from ..request import Allowed, ConstrainedSpan, Request
from ..trace import PROMPT
from .canvas import Canvas, Revision, Update
from .query_plan import Group


def _at(values: Tensor, group: Group, positions: Tensor, rows: Tensor | None) -> Tensor:
    """`values` [B, L + 1] at `positions` [n, M] of a group, or at one position [N] of each of its `rows` [N]."""
    values = group.of(values)
    return values.gather(1, positions) if rows is None else values[rows, positions]


class RepetitionPenalty:
    """Makes tokens that are already in the row less likely."""

    def __init__(self, request: Request, canvas: Canvas, vocab: int, penalty: float) -> None:
        self.request, self.canvas, self.vocab, self.penalty = request, canvas, vocab, penalty

    @classmethod
    def of(cls, request: Request, canvas: Canvas, vocab: int) -> Self | None:
        """The constraint that the request sets; None if it sets none."""
        penalty = request.repetition_penalty
        return None if penalty is None else cls(request, canvas, vocab, penalty)

    def begin(self) -> None:
        # After a short answer the canvas is full of end tokens, which must not be penalized.
        canvas = self.canvas
        inside = np.arange(canvas.length + 1) < canvas.total[:, None]
        known = ~canvas.open & upload(inside, canvas.open.device)
        self.counts = token_counts(canvas.tokens, known, self.vocab, self.request.stop_ids)  # [B, V]

    def process(self, logits: Tensor, group: Group, positions: Tensor, rows: Tensor | None) -> Tensor:
        own = torch.where(
            _at(self.canvas.open, group, positions, rows), -1, _at(self.canvas.tokens, group, positions, rows)
        )
        counts = group.of(self.counts)
        return penalize(logits, counts[:, None] if rows is None else counts[rows], own, self.penalty)


class CountPenalty:
    """Makes tokens less likely that were generated, at positions other than their own."""

    def __init__(self, request: Request, canvas: Canvas, vocab: int) -> None:
        self.request, self.canvas, self.vocab = request, canvas, vocab

    @classmethod
    def of(cls, request: Request, canvas: Canvas, vocab: int) -> Self | None:
        """The constraint that the request sets; None if it sets none."""
        return cls(request, canvas, vocab) if request.penalizes_counts else None

    def begin(self) -> None:
        canvas = self.canvas
        inside = upload(np.arange(canvas.length + 1) < canvas.total[:, None], canvas.open.device)
        self.generated = ~canvas.open & inside & (canvas.commit_step != PROMPT)  # [B, L + 1]
        self.counts = token_counts(canvas.tokens, self.generated, self.vocab, self.request.stop_ids)  # [B, V]

    def process(self, logits: Tensor, group: Group, positions: Tensor, rows: Tensor | None) -> Tensor:
        own = torch.where(
            _at(self.generated, group, positions, rows), _at(self.canvas.tokens, group, positions, rows), -1
        )
        counts, request = group.of(self.counts), self.request
        elsewhere = counts_elsewhere(counts[:, None] if rows is None else counts[rows], own, logits)
        return subtract_counts(logits, elsewhere.clamp(min=0), request.presence_penalty, request.frequency_penalty)


class LogitBias:
    """Adds a number to the logits of some ids."""

    def __init__(self, request: Request, canvas: Canvas, vocab: int) -> None:
        self.bias = upload(bias_vector(request.logit_bias, vocab), canvas.open.device)  # [V]

    @classmethod
    def of(cls, request: Request, canvas: Canvas, vocab: int) -> Self | None:
        """The bias that the request sets; None if it sets none."""
        return cls(request, canvas, vocab) if request.logit_bias else None

    def process(self, logits: Tensor, group: Group, positions: Tensor, rows: Tensor | None) -> Tensor:
        return logits + self.bias


@dataclass(frozen=True)
class EarlyEnds:
    """Excludes end tokens at the first `min_new_tokens` positions after the prompt."""

    request: Request
    canvas: Canvas

    @classmethod
    def of(cls, request: Request, canvas: Canvas) -> Self | None:
        """The constraint that the request sets; None if it sets none."""
        return cls(request, canvas) if request.min_new_tokens else None

    def process(self, logits: Tensor, group: Group, positions: Tensor, rows: Tensor | None) -> Tensor:
        canvas = self.canvas
        early = np.arange(canvas.length + 1) - canvas.prompt[:, None] < self.request.min_new_tokens
        on_device = upload(early, canvas.tokens.device)
        return without_ends(logits, _at(on_device, group, positions, rows), self.request.stop_ids)


class TokenLimits(RowState):
    """The tokens allowed at each position, by sets and constrained spans.

    Attributes:
        now: the allowed tokens in the current step.
    """

    per_row = ("allowed", "spans")

    def __init__(self, allowed: Allowed | None, spans: Sequence[tuple[ConstrainedSpan, ...]], canvas: Canvas) -> None:
        self.canvas = canvas
        self.allowed = self.now = AllowedRows(allowed, len(canvas), canvas.tokens.device)
        self.spans = ConstrainedSpans(spans, len(canvas))

    @classmethod
    def of(cls, request: Request, canvas: Canvas) -> Self | None:
        """The limits that the request sets; None if every token is allowed everywhere."""
        if request.allowed is None and not any(request.constrained_spans):
            return None
        return cls(request.allowed, request.constrained_spans, canvas)

    def begin(self) -> None:
        self.now = self.spans.narrow(self.allowed, self.canvas)

    def process(self, logits: Tensor, group: Group, positions: Tensor, rows: Tensor | None) -> Tensor:
        if not self.now:
            return logits
        live = group.of(torch.arange(len(self.canvas), device=logits.device))
        own = live[:, None] if rows is None else live[rows]
        return logits.masked_fill(~self.now.mask(own, positions), -torch.inf)

    def consistent(
        self, chosen: Update, revision: Revision | None = None, fill: Update | None = None
    ) -> tuple[Update, Revision | None, Update | None]:
        """A step's updates without tokens that are inconsistent with other tokens of their constrained span."""
        if not self.spans:
            return chosen, revision, fill
        return self.spans.consistent(self.canvas, chosen, revision, fill)


class ConstrainedSpans(RowState):
    """The constrained spans (gaps) of every live row."""

    per_row = ("each",)

    def __init__(self, gaps: Sequence[tuple[ConstrainedSpan, ...]], rows: int) -> None:
        self.each: list[tuple[ConstrainedSpan, ...]] = list(gaps) or [()] * rows

    def __bool__(self) -> bool:
        """Whether any row has a constrained span."""
        return any(self.each)

    def narrow(self, allowed: AllowedRows, canvas: Canvas) -> AllowedRows:
        """`allowed` narrowed to the tokens that fit those that `canvas` has committed in each span."""
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
        """A step's updates without tokens that are inconsistent with other tokens of their span."""
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
        """Every constrained span with the index of its live row."""
        return ((row, gap) for row, gaps in enumerate(self.each) for gap in gaps)


class _Candidates:
    """One update on the host, whose columns are at `positions` [B, N]."""

    def __init__(self, value: Update | None, positions: np.ndarray) -> None:
        self.value, self.positions = value, positions
        if value is not None:
            self.which = download(value.which).copy()
            self.tokens, self.scores = download(value.tokens), download(value.scores)

    def inside(self, row: int, gap: ConstrainedSpan) -> list[tuple[int, int, int]]:
        """(column, index in the span, token) of each token written to a span, by descending score, then by column."""
        if self.value is None:
            return []
        index = self.positions[row] - gap.start
        columns = np.flatnonzero(self.which[row] & (index >= 0) & (index < gap.automaton.length))
        columns = columns[np.argsort(-self.scores[row, columns], kind="stable")]
        return [(int(at), int(index[at]), int(self.tokens[row, at])) for at in columns]

    def writing(self) -> Update | None:
        if self.value is None:
            return None
        which: Tensor = upload(self.which, self.value.which.device)
        return replace(self.value, which=which)


def _committed(gap: ConstrainedSpan, canvas: Canvas, row: int) -> np.ndarray:
    """[n]: the tokens of a span, -1 where open."""
    span = slice(gap.start, gap.start + gap.automaton.length)
    return np.where(canvas.open_host[row, span], -1, canvas.tokens_host[row, span])
