"""Hypotheses: live rows are repeated before a forward, and all but one copy of each are removed after its commit.

What a hypothesis is made from, and which of them survives, is up to the branch stage. Everything else of the loop
(plans, K/V, states of stages, draws) sees rows like any others; those of one request row have the same seed.

The step commits to every hypothesis, and the host reads which ones survive with the tokens. Where all stages that
decide need no host, a device makes the next hypotheses of the survivors before that transfer, which carries them as
well: a step has one. Elsewhere they are made, and read, before the next forward. Where blocks slide, a hypothesis
begins in its row's window, a part of which the last forward predicted, and it slides once its tokens are drafted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pardec.models.cuda_graphs.capture import CaptureError

from ..host_transfer import upload
from ..ops.distribution import DenseDistribution
from ..rng import keys_at
from ..traits import Trait
from .canvas import CONTENTS, DeviceCanvas, Update
from .contracts import Branch, Canvas, Choice, Decision, Evidence, Hypotheses, MaskedSampler, Proposal, Stage

if TYPE_CHECKING:
    from .predict import MaskedForward


class Loop(Protocol):
    """The part of the masked loop that hypotheses use."""

    canvas: Canvas
    sampler: MaskedSampler
    forward: MaskedForward
    memory: dict[int, Any]  # the state of each stage, by the stage's id
    with_distribution: Any  # hooks of a step: see `MaskedLoop`

    def keep(self, keep: np.ndarray) -> None:
        """Keeps these live rows; a row may repeat."""
        ...

    def choose(self, evidence: Evidence) -> tuple[Choice, Proposal, Stage]:
        """Chooses the tokens to commit, given this evidence: see `MaskedLoop.choose`."""
        ...

    def ended_rows(self) -> np.ndarray:
        """[B] bool: the live rows that a finish stage ends."""
        ...


@dataclass(frozen=True)
class _Past:
    """Predictions of the previous forward, for the n live rows."""

    evidence: Evidence
    first: np.ndarray  # [n] the first position of the block of each

    def take(self, rows: np.ndarray) -> _Past:
        """The predictions for these live rows, by index."""
        return _Past(self.evidence.take(rows), self.first[rows])


@dataclass(frozen=True)
class _Drafted:
    """The hypotheses of the n live rows, where a device has made them already: rows of a canvas."""

    contents: Mapping[str, Tensor]
    packed: np.ndarray  # [n * G, L + 1] see `DeviceCanvas.packed_tokens`
    valid: np.ndarray  # [n * G] bool: each of its steps added a token
    at: np.ndarray  # [n, G] the index of each among them

    def take(self, rows: np.ndarray) -> _Drafted:
        """The hypotheses of these live rows, by index."""
        return replace(self, at=self.at[rows])


@dataclass
class _Compared:
    """A step's hypotheses between the decision and the end of the commit."""

    best: Tensor  # [n] the index of the survivors
    evidence: Evidence  # evidence of all N hypotheses
    first: np.ndarray  # [N] the first position of the block of each
    read: np.ndarray | None = None  # `best` on the host
    drafted: _Drafted | None = None


class Branching:
    """Runs several hypotheses of each row in one forward, and keeps the one that the branch stage chooses."""

    def __init__(self, loop: Loop, branch: Branch) -> None:
        self.loop, self.branch = loop, branch
        self.past: _Past | _Drafted | None = None
        self.compared: _Compared | None = None
        canvas, traits = loop.canvas, loop.sampler.traits
        self.stores = Trait.STORES_KV in traits
        shifted = canvas.shift and not canvas.block_causal
        # Windows that slide with K/V of tokens alone; each forward computes all from the last one's first position on.
        self.slides = canvas.sliding and Trait.KV_OF_TOKENS in traits
        self.replaces_first = bool(shifted) and self.stores and Trait.KEEPS_TOKENS in traits and not self.slides
        self.depths, self.needs = np.array(branch.depths), np.array(branch.needs)
        self.row = np.zeros(0, dtype=np.int64)  # [N] the live row of each hypothesis
        self.number = np.zeros(0, dtype=np.int64)
        self.refused = False  # a stage reads the host although it says that it does not

    # --- before a forward ---

    def expand(self) -> None:
        """Repeats the rows for which the last forward predicted further tokens, and writes the hypotheses."""
        canvas = self.loop.canvas
        requested = np.zeros((len(canvas), len(self.depths)), dtype=bool)
        if self.past is not None:
            # Hypotheses in a block's first forward would lack the K/V that this forward refreshes.
            ready = ~(canvas.block_started & (self.stores and not self.slides))
            requested = ready[:, None] & (self.needs <= canvas.block_remaining[:, None])
        requested[:, 0] = True
        self.row, self.number = requested.nonzero()
        if self.past is None or len(self.row) == len(canvas):
            return
        past, self.past = self.past, None
        if isinstance(past, _Drafted):
            self._adopt(past)
            return
        evidence, first = past.evidence.take(self.row), past.first[self.row]
        self.loop.keep(self.row)
        depth, valid = self.depths[self.number], np.ones(len(self.row), dtype=bool)
        if self.slides:  # the window is further on than that of the last forward, which predicted a part of it
            now = canvas.window_host[:, 0]
            evidence = evidence.slid(canvas.window, now - first)
            first = now
        with canvas.held() if self.slides else nullcontext():
            for step in range(1, int(depth.max()) + 1):
                # A hypothesis that has completed the block is the last of its row.
                due = valid & (depth >= step) & (first == canvas.window_host[:, 0])
                moved = np.zeros_like(due)
                if (canvas.eligible_host & due[:, None]).any():
                    which = upload(due, evidence.positions.device)[:, None]
                    moved = canvas.draft(self._draft(self.loop, step, self.number, which, evidence))
                valid &= moved | (depth < step)
        valid &= (self.number == 0) | (canvas.first_open < canvas.total)  # a complete row needs no forward
        if not valid.all():
            self.loop.keep(np.flatnonzero(valid))
            self.row, self.number = self.row[valid], self.number[valid]

    def _draft(self, loop: Loop, step: int, number: np.ndarray, rows: Tensor, past: Evidence) -> Update:
        """The tokens that the hypotheses `rows` [N, 1] bool of the loop's canvas add at `step`."""
        canvas, branch = loop.canvas, self.branch
        # The last forward may have left out open positions, whose tokens it did not predict.
        evidence = replace(past, eligible=canvas.eligible & past.eligible & rows)
        choice, proposal, _ = loop.choose(evidence)
        choice = branch.draft(step, number, choice, proposal)
        chosen = choice.which & evidence.eligible
        if self.replaces_first:
            # Until a block's first token is committed, each forward replaces the K/V of the position before it, whose
            # output predicts it. A hypothesis that commits this token would read older K/V, unless it ends the block.
            ends = canvas.eligible.sum(1) == chosen.sum(1)
            chosen = chosen & (~chosen[:, :1] | ends[:, None])
        draft = Update(chosen, choice.tokens, proposal.score)
        if (limits := loop.forward.limits) is not None:
            draft, *_ = limits.consistent(draft)
        return draft

    def _adopt(self, drafted: _Drafted) -> None:
        """Turns the requested hypotheses into rows of the canvas, except those with a step that added no token."""
        canvas, at = self.loop.canvas, drafted.at[self.row, self.number]
        # A complete row needs no forward.
        valid = (self.number == 0) | (drafted.valid[at] & canvas.has_open(drafted.packed[at]))
        self.row, self.number, at = self.row[valid], self.number[valid], at[valid]
        if len(self.row) == len(canvas):
            return
        self.loop.keep(self.row)
        where = upload(at, canvas.tokens.device)
        contents = {name: tensor[where] for name, tensor in drafted.contents.items()}
        canvas.adopt(contents, drafted.packed[at], self.depths[self.number])

    # --- after it ---

    def compare(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        """Finds which hypothesis of each row survives; a hypothesis that a finish stage has ended commits nothing."""
        canvas, chosen = self.loop.canvas, decision.chosen
        ended = self.loop.ended_rows() & (self.number > 0)
        best = self.branch.survivors(
            Hypotheses(self.row, self.number, canvas, proposal, chosen.which, chosen.tokens, ended)
        )
        self.compared = compared = _Compared(best, evidence, canvas.window_host[:, 0])
        canvas.read_later({"best": best}, lambda read: setattr(compared, "read", read["best"]))
        if not ended.any():
            return decision
        return replace(decision, chosen=chosen.only(upload(~ended, best.device)[:, None]))

    def written(self) -> None:
        """Called after a commit has written its tokens and before they are read: makes the next hypotheses."""
        if self._needs_no_host():
            try:
                self._draft_ahead()
            except CaptureError:
                self.refused = True

    def collapse(self, decision: Decision) -> None:
        """Keeps one hypothesis of each row; called after the commit."""
        compared, self.compared, self.past = self.compared, None, None
        assert compared is not None, "the commit follows the comparison"
        assert compared.read is not None, "and has read the survivors"
        best = compared.read
        if len(best) < len(self.row):
            self.loop.keep(best)
        self.past = compared.drafted or _Past(compared.evidence, compared.first).take(best)

    def _needs_no_host(self) -> bool:
        """Whether the drafts of this request can be made before the host knows what has been committed."""
        loop = self.loop
        stages: tuple[Stage, ...] = (loop.sampler.propose, loop.sampler.select, *loop.sampler.widen)
        compared = self.compared
        assert compared is not None, "written by a commit"
        return (
            not (self.refused or loop.canvas.on_host or self.slides)
            and not loop.with_distribution
            and loop.forward.limits is None
            and isinstance(compared.evidence.distribution, DenseDistribution)
            and compared.evidence.attention is None
            and hasattr(compared.evidence.request.source, "row_keys")  # else they are recorded numbers
            and all(Trait.NEEDS_NO_HOST in each.provides and loop.memory.get(id(each)) is None for each in stages)
        )

    def _draft_ahead(self) -> None:
        """Makes all hypotheses of the survivors on the device; the transfer of the commit carries them."""
        loop, canvas, compared = self.loop, self.loop.canvas, self.compared
        assert compared is not None, "between the comparison and the end of the commit"
        rows, size, device = np.flatnonzero(self.number == 0), len(self.depths), canvas.tokens.device
        first, number = np.repeat(rows, size), np.tile(np.arange(size), len(rows))
        # The host knows what all hypotheses of a row have in common; the rest is on the device, like the survivors.
        survivor = compared.best[:, None].expand(-1, size).flatten()
        clock = upload(canvas.step + 1, device)[survivor]
        source: Any = compared.evidence.request.source
        keys = upload(source.row_keys(canvas.rows[first], "token"), device)
        contents = {name: getattr(canvas, name)[survivor] for name in CONTENTS}
        nfe = upload(canvas.nfe[first] + 1, device)
        drafted = DeviceCanvas(contents, canvas.window[survivor], nfe, canvas.mask_id)
        inner: Any = copy.copy(loop)
        inner.canvas, past = drafted, compared.evidence.take(survivor)
        valid = torch.ones(len(first), dtype=torch.bool, device=device)
        for step in range(1, int(self.depths.max()) + 1):
            due = upload(self.depths[number] >= step, device)
            drafted.keys = lambda at, now=clock + (step - 1): keys_at(keys, now, at)
            draft = self._draft(inner, step, number, (valid & due)[:, None], past)
            valid = valid & (draft.which.any(1) | ~due)
            drafted.write(draft)
            drafted.eligible = drafted.open.gather(1, drafted.window)
        at = np.arange(len(first)).reshape(-1, size)

        def read(parts: Mapping[str, np.ndarray]) -> None:
            compared.drafted = _Drafted(contents, parts["packed"], parts["valid"], at)

        canvas.read_later({"packed": drafted.packed_tokens(), "valid": valid}, read)

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        if self.past is not None:
            self.past = self.past.take(rows)
