"""What a step writes to the canvas: tokens at some positions, and a revision of committed ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import or_
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError


@dataclass(frozen=True, slots=True)
class Writing:
    """Tokens and scores for some positions: of the block, [B, W] each, or of the whole row, [B, L + 1]."""

    which: Tensor  # bool
    tokens: Tensor  # int64
    scores: Tensor  # float32

    def override(self, other: Writing) -> Writing:
        """Both; this one where they overlap."""
        tokens, scores = (
            torch.where(self.which, *both) for both in ((self.tokens, other.tokens), (self.scores, other.scores))
        )
        return Writing(self.which | other.which, tokens, scores)

    def only(self, where: Tensor) -> Writing:
        """Restricted to `where` (bool, broadcast)."""
        return replace(self, which=self.which & where)

    def take(self, rows: Tensor) -> Writing:
        """Of these rows ([n] int64)."""
        return Writing(self.which[rows], self.tokens[rows], self.scores[rows])


@dataclass(frozen=True, slots=True)
class Revision:
    """Changes to what forwards have committed in the active block; tokens that the request gave never change."""

    reopen: Tensor | None = None  # [B, W] bool: open again; nothing that this step chose there is committed
    rewrite: Writing | None = None
    hold: np.ndarray | None = None  # [B] bool: the row stays in the block though nothing in it is open
    commit: Writing | None = None  # of open positions, beside what the step chose, and in its place
    source: Tensor | None = None  # [B, W] int64, after all that: whose token each position takes over; -1: a new mask

    def merge(self, other: Revision) -> Revision:
        """Both at once: reopening wins over rewriting, and a later rewrite over an earlier one."""
        if self.source is not None or other.source is not None:
            raise RuntimeError("tokens that move are revised by one stage alone")
        rewrite, commit = (
            _join(*both, lambda one, two: two.override(one))
            for both in ((self.rewrite, other.rewrite), (self.commit, other.commit))
        )
        return Revision(_join(self.reopen, other.reopen, or_), rewrite, _join(self.hold, other.hold, or_), commit)

    def only(self, rows: Tensor) -> Revision:
        """Restricted to these rows ([B, 1] bool)."""
        return Revision(
            None if self.reopen is None else self.reopen & rows,
            None if self.rewrite is None else self.rewrite.only(rows),
            None if self.hold is None else self.hold & rows[:, 0].cpu().numpy(),
            None if self.commit is None else self.commit.only(rows),
            None if self.source is None else torch.where(rows, self.source, _own(self.source)),
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Where the open positions of each row compete in the coming step. Arrays live on the host."""

    lo: np.ndarray  # [B] where the span begins; caches take it for the start of the active block
    hi: np.ndarray  # [B] where it ends
    entered: np.ndarray  # [B] bool: a new block begins, at which caches refresh and schedules start anew
    eligible: np.ndarray | None = None  # [B, W] bool, of the canvas's window: nothing else competes; None: all of it
    progress: np.ndarray | None = None  # [B] where no position is sure, the best before this one is committed; None: hi


def refuse_masks(tokens: np.ndarray, free: np.ndarray, mask_id: int, rows: np.ndarray) -> None:
    """Raises SpecError where a mask was written as if it were a token: `tokens` [B, L + 1], `free` where one may be."""
    wrong = (tokens == mask_id) & ~free
    if wrong.any():
        row, position = (int(index[0]) for index in wrong.nonzero())
        raise SpecError(
            f"the mask token (id {mask_id}) was chosen for position {position} of row {rows[row]}",
            "a stage that wants a position open again names it in Revision.reopen",
        )


def _own(source: Tensor) -> Tensor:
    """[B, W] each position's own number."""
    return torch.arange(source.shape[1], device=source.device).expand_as(source)


_T = TypeVar("_T")


def _join(one: _T | None, other: _T | None, both: Callable[[_T, _T], _T]) -> _T | None:
    return other if one is None else one if other is None else both(one, other)
