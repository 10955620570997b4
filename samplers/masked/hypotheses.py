"""Hypotheses: live rows are repeated before a forward, and all but one copy of each are removed after it.

What a hypothesis is made from, and which of them survives, is up to the branch stage. Everything else of the loop
(plans, K/V, states of stages, draws) sees rows like any others; those of one request row have the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..batching import take_rows
from ..host_transfer import upload
from ..traits import Trait
from .canvas import Update
from .contracts import Branch, Canvas, Choice, Decision, Evidence, Hypotheses, MaskedSampler, Proposal, Stage

if TYPE_CHECKING:
    from .predict import MaskedForward


class Loop(Protocol):
    """The part of the masked loop that hypotheses use."""

    canvas: Canvas
    sampler: MaskedSampler
    forward: MaskedForward

    def keep(self, keep: np.ndarray) -> None:
        """Keeps these live rows; a row may repeat."""
        ...

    def choose(self, evidence: Evidence) -> tuple[Choice, Proposal, Stage]:
        """Chooses the tokens to commit, given this evidence: see `MaskedLoop.choose`."""
        ...

    def ended_rows(self) -> np.ndarray:
        """[B] bool: the live rows that a finish stage ends."""
        ...


@dataclass
class _Past:
    """Predictions of the previous forward, for the n live rows; `live`: those that are still in its block."""

    evidence: Evidence
    live: np.ndarray  # [n] bool
    first: np.ndarray  # [n] the first position of the block of each


class Branching:
    """The hypotheses of one loop."""

    def __init__(self, loop: Loop, branch: Branch) -> None:
        self.loop, self.branch = loop, branch
        self.past: _Past | None = None
        canvas, traits = loop.canvas, loop.sampler.traits
        self.stores = Trait.STORES_KV in traits
        shifted = canvas.shift and not canvas.block_causal
        self.replaces_first = bool(shifted) and self.stores and Trait.KEEPS_TOKENS in traits
        self.depths, self.needs = np.array(branch.depths), np.array(branch.needs)
        self.row = np.zeros(0, dtype=np.int64)  # [N] the live row of each hypothesis
        self.number = np.zeros(0, dtype=np.int64)

    def expand(self) -> None:
        """Repeats the rows for which the last forward predicted further tokens, and writes the hypotheses."""
        canvas = self.loop.canvas
        requested = np.zeros((len(canvas), len(self.depths)), dtype=bool)
        if self.past is not None:
            # Hypotheses in a block's first forward would lack the K/V that this forward refreshes.
            ready = self.past.live & ~(canvas.block_started & self.stores)
            requested = ready[:, None] & (self.needs <= canvas.block_remaining[:, None])
        requested[:, 0] = True
        self.row, self.number = requested.nonzero()
        if self.past is None or len(self.row) == len(canvas):
            return
        past, first, self.past = self.past.evidence.take(self.row), self.past.first[self.row], None
        self.loop.keep(self.row)
        depth, valid = self.depths[self.number], np.ones(len(self.row), dtype=bool)
        for step in range(1, int(depth.max()) + 1):
            # A hypothesis that has completed the block is the last of its row.
            due = valid & (depth >= step) & (first == canvas.window_host[:, 0])
            valid &= self._draft(step, due, past) | (depth < step)
        valid &= (self.number == 0) | (canvas.first_open < canvas.total)  # a complete row needs no forward
        if not valid.all():
            self.loop.keep(np.flatnonzero(valid))
            self.row, self.number = self.row[valid], self.number[valid]

    def _draft(self, step: int, rows: np.ndarray, past: Evidence) -> np.ndarray:
        """Writes the tokens that hypotheses `rows` [N] bool add at `step`; returns [N] bool: those that added some."""
        canvas, branch = self.loop.canvas, self.branch
        which = upload(rows, past.positions.device)[:, None]
        evidence = replace(past, eligible=canvas.eligible & which)
        if not (canvas.eligible_host & rows[:, None]).any():
            return np.zeros(len(canvas), dtype=bool)
        choice, proposal, _ = self.loop.choose(evidence)
        choice = branch.draft(step, self.number, choice, proposal)
        chosen = choice.which & evidence.eligible
        if self.replaces_first:
            # As long as a block's first position is open, a forward replaces the K/V of the one before, which predicts
            # it: a hypothesis that commits it would see those of an earlier forward. One that ends the block does not.
            ends = upload(canvas.block_remaining, chosen.device) == chosen.sum(1)
            chosen = chosen & (~chosen[:, :1] | ends[:, None])
        draft = Update(chosen, choice.tokens, proposal.score)
        if (limits := self.loop.forward.limits) is not None:
            draft, *_ = limits.consistent(draft)
            chosen = draft.which
        return canvas.draft(draft)

    def collapse(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        """Keeps one hypothesis of each row and returns the decision for the kept ones."""
        loop, canvas = self.loop, self.loop.canvas
        ended = loop.ended_rows() & (self.number > 0)
        chosen = decision.chosen
        best = self.branch.survivors(
            Hypotheses(self.row, self.number, canvas, proposal, chosen.which, chosen.tokens, ended)
        )
        if len(best) < len(self.row):
            self.past = None
            loop.keep(best)
        rest = upload(~ended[best], chosen.which.device)[:, None]
        self.past = _Past(evidence.take(best), np.ones(len(best), dtype=bool), canvas.window_host[:, 0].copy())
        return replace(decision, chosen=take_rows(chosen, best).only(rest))

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        if self.past is not None:
            self.past = _Past(self.past.evidence.take(rows), self.past.live[rows], self.past.first[rows])
