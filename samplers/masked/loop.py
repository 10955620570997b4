"""The masked loop: diffusion language models fill in a canvas block by block, every row at its own pace.

One step: the schedule's clock, the cache's positions, the inputs, the forward (one for each group of rows that query
about as much), then logits, propose, select, widen, revise, commit, finish. The loop itself keeps four promises: the
first forward of a row is full (but for a prefix that it reuses), an open row commits at least one position a step, the
mask id is never committed, and logits that are not finite are an error.

What finish stages do within a step: rows whose open positions are all committed at once, and where rows end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import ModelError, SpecError
from pardec.models.finite import demand_head
from pardec.models.model import LanguageModel

from ..batching import scatter_rows, take_rows, unbatchable
from ..cards import name_of
from ..conditioning import conditioned_model
from ..endings import Endings
from ..events import Event, Finished, RowFinished
from ..logprobs import LogprobRecorder
from ..ops.chunked_distribution import CHUNK_BYTES
from ..ops.distribution import split
from ..registry import resolve
from ..rng import assign_rows
from ..traits import Trait
from . import compatibility
from .build import fit
from .canvas import UNCOMMITTED, Canvas, Revision, Update
from .compatibility import Read, demand_finite, mask_chosen
from .contracts import (
    Block,
    Choice,
    Decision,
    Evidence,
    Finish,
    MaskedSampler,
    Proposal,
    QuerySpec,
    Request,
    Span,
    Stage,
    Stateful,
    at_least_one,
)
from .hypotheses import Branching
from .predict import MaskedForward
from .query_plan import visible_open
from .recorder import Before, TraceRecorder


def commit_filled_rows(
    decision: Decision, proposal: Proposal, stages: Sequence[Finish], forward: MaskedForward, distributions: list[Read]
) -> Decision:
    """The decision, with every open position committed in the rows that a stage fills; adds what that reads."""
    canvas = forward.canvas
    rows = np.zeros(len(canvas), dtype=bool)
    for stage in stages:
        rows |= stage.fill(forward, proposal, canvas)
    if not rows.any():
        return decision
    which, columns = visible_open(canvas, rows)
    distribution = forward.at(columns)
    distributions.append(Read(None, distribution, columns, which.gather(1, columns)))
    return decision.filled(canvas, rows, which, columns, distribution)


def row_ends(stages: Sequence[Finish], forward: MaskedForward, canvas: Canvas, request: Request) -> np.ndarray:
    """[B] where rows end from now on: the least of what stages say that cut rows in this step."""
    if not forward.whole:
        return canvas.total
    return reduce(np.minimum, (stage.cut(forward, canvas, request) for stage in stages))


_SPARE_FORWARDS = 100  # a row may take this many more than it has positions to fill
_FORWARDS_WITH_REVISION = 100  # and this many per position where committed tokens may be opened again


def decode(model: LanguageModel, sampler: MaskedSampler, request: Request, *, steps: bool = True) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Step` and `RowFinished` events, and at last `Finished`.

    Without `steps` there are no `Step` events, which saves a transfer a step.
    """
    loop = MaskedLoop(model, sampler, request)
    try:
        yield loop.recorder.started()
        yield from loop.retire()
        while len(loop.canvas):
            before = loop.step()
            if steps:
                yield loop.recorder.step(before)
            yield from loop.retire()
        yield loop.recorder.finished()
    finally:
        loop.close()


def _reference_text(model: LanguageModel, reference: str, sampler: MaskedSampler, request: Request) -> Tensor:
    """What the select's reference sampler ends with: [B, L + 1], -1 where it committed nothing and nothing was given.

    It stops where the sampler itself stops.
    """
    stops = tuple(finish for finish in sampler.finish if finish not in sampler.filling)
    request = replace(request, logprobs=None)
    *_, last = decode(model, replace(resolve(reference), finish=stops), request, steps=False)
    assert isinstance(last, Finished)
    text = torch.from_numpy(np.where(last.trace.commit_step == UNCOMMITTED, -1, last.tokens))
    return torch.nn.functional.pad(text, (0, 1), value=-1).to(model.device)


class MaskedLoop:
    """The state of one request."""

    def __init__(self, model: LanguageModel, sampler: MaskedSampler, request: Request, *, columns: int = 0) -> None:
        """The canvas has at least `columns` columns."""
        decoding_config = model.decoding_config
        if decoding_config.mask_id is None:
            raise ModelError(f"{model.name} has no mask token: it is no masked diffusion model")
        block_causal = decoding_config.attention == "block-causal"
        if block_causal and not (request.absolute and request.block_length == decoding_config.block):
            raise ModelError(
                f"{model.name} decodes in blocks of {decoding_config.block} laid from position 0, and no others"
            )
        demand_head(model)
        compatibility.check(sampler, model, request)
        sampler = fit(sampler, model)
        if sampler.select.reference_sampler is not None:
            text = _reference_text(model, sampler.select.reference_sampler, sampler, request)
            request = replace(request, finished=text)
        if request.conditions:
            model = conditioned_model(model, request, request.prefix)
        self.sampler, self.request = sampler, request
        self.canvas = canvas = Canvas(
            request.canvases,
            request.prompts,
            mask_id=decoding_config.mask_id,
            pad_id=decoding_config.pad_id,
            block_length=request.block_length,
            absolute=request.absolute,
            block_causal=block_causal,
            bounded=model.follows_canvas,
            sliding=Trait.SLIDES in sampler.traits,
            moving=sampler.block is not None,
            shift=decoding_config.shift,
            device=model.device,
            length=columns,
        )
        canvas.revises, canvas.moves = bool(sampler.revising), sampler.moving is not None
        if (total := sampler.select.total_steps(canvas)) is not None:
            canvas.total_steps = total
        self.memory: dict[int, Any] = {id(stage): stage.start(canvas) for stage in sampler.stateful}
        self.may_wait = Trait.MAY_WAIT in sampler.select.provides
        self.needs_order = Trait.KNOWN_ORDER in sampler.cache.requires
        self.filling, self.cutting = sampler.filling, sampler.cutting
        changed = [stage for stage in sampler.inputs if Trait.OBSERVES_CHANGED_LOGITS in stage.provides]
        self.observing = [stage for stage in sampler.inputs if stage not in changed], changed
        self.branching = None if sampler.branch is None else Branching(self, sampler.branch)
        self.forward = MaskedForward(model, canvas, sampler, request)
        self.logprobs = LogprobRecorder.of(request, canvas, canvas.length, model.device)
        self.recorder = TraceRecorder(canvas, self.forward.sequences, self.logprobs)
        self.endings = Endings(request.stops, len(canvas))
        self.distributions: list[Read] = []  # of the step, in order
        self.progress: np.ndarray | None = None  # [B] before which a row commits at least one; None: the block's end

    # --- one step ---

    @torch.inference_mode()
    def step(self) -> Before:
        """One forward for every live row, and its commits; returns the canvas before it."""
        canvas = self.canvas
        before = Before(canvas.open_host.copy(), canvas.tokens_host.copy() if canvas.revises else None)
        if self.branching is not None:
            self.branching.expand()
        query = self.plan()
        evidence = self.predict(query)
        self.distributions = [Read(None, evidence.distribution, evidence.positions, evidence.eligible)]
        if canvas.tokens.device.type == "cpu":  # elsewhere the host would wait: the value comes with the commit
            demand_finite(float(self.forward.highest), self.distributions, self.forward)
        decision, proposal = self.decide(evidence, query)
        decision = self._consistent(decision)
        if self.branching is not None:
            decision = self.branching.collapse(decision, proposal, evidence)
        window, new = canvas.window, canvas.nfe == 0
        ends = row_ends(self.cutting, self.forward, canvas, self.request) if self.forward.cuts else canvas.total
        demand_finite(self._commit(decision), self.distributions, self.forward)
        self._demand_progress()
        if (ends < canvas.total).any():
            canvas.cut(ends)
        if self.logprobs is not None:
            self._record(self.logprobs, decision, window)
        if new.any():
            self.recorder.reused[canvas.rows[new]] = self.forward.reuse.length[new]
            self._store_prefixes(new)
        return before

    def _store_prefixes(self, which: np.ndarray) -> None:
        """Leaves the final tokens of these rows ([B] bool) to later requests."""
        final = self.sampler.cache.final(self.state(self.sampler.cache))
        if final is None:
            return
        for at in np.flatnonzero(which).tolist():
            self.forward.reuse.store(at, self.canvas.tokens_host[at, : int(final[at])])

    def _commit(self, decision: Decision) -> float:
        """Writes the decision; the sum of the highest logits so far. An error names who chose the mask id."""
        revision = decision.revision
        try:
            return self.canvas.commit(
                decision.chosen, fill=decision.fill, revision=revision, beside=self.forward.highest
            )
        except SpecError as error:
            demand_finite(
                float(self.forward.highest), self.distributions, self.forward
            )  # what may have led to it comes first
            edits = [(stage, None if revision is None else revision.rewrite) for stage in self.sampler.revising]
            raise mask_chosen(error, [(decision.token_source, decision.chosen), *edits], self.canvas) from None

    def _demand_progress(self) -> None:
        """Raises SpecError for a row that took far more forwards than it has positions: it would never end."""
        canvas = self.canvas
        if self.may_wait:
            return
        positions = canvas.planned - canvas.prompt
        most = _SPARE_FORWARDS + positions * (_FORWARDS_WITH_REVISION if canvas.revises else 1)
        if (stuck := canvas.nfe > most).any():
            row, forwards = canvas.rows[stuck][0], canvas.nfe[stuck][0]
            raise SpecError(
                f"row {row} has masks left after {forwards} forwards: its sampler commits nothing more",
                hint="name another cache or block stage; two stages of this spec wait for each other",
            )

    def _record(self, logprobs: LogprobRecorder, decision: Decision, window: Tensor) -> None:
        """The log-probabilities of what the step just committed, filled or rewrote in the block `window` [B, W]."""
        canvas, forward = self.canvas, self.forward
        when = canvas.commit_step.cpu().numpy()
        if canvas.revises:
            row, position = (when == UNCOMMITTED).nonzero()
            logprobs.clear(canvas.rows[row], position)
        now = when == (canvas.nfe - 1)[:, None]
        sources = [(window, forward.raw())]
        if decision.columns is not None:  # rows that are filled commit nothing else
            sources.insert(0, (decision.columns, forward.raw(decision.columns)))
        for columns, distribution in sources:
            positions = columns.cpu().numpy()
            committed = np.flatnonzero(np.take_along_axis(now, positions, 1))
            for flat in split(committed, CHUNK_BYTES // (4 * distribution.vocab)):
                row, position = flat // positions.shape[1], positions.reshape(-1)[flat]
                tokens = torch.from_numpy(canvas.tokens_host[row, position]).to(columns.device)
                logprobs.add(canvas.rows[row], position, tokens, distribution.logits_at(flat))
                now[row, position] = False

    def state(self, stage: Stateful) -> Any:
        """What `stage` remembers of this request."""
        return self.memory[id(stage)]

    def plan(self) -> QuerySpec:
        """The schedule's clock, then the positions to query."""
        canvas, select, cache = self.canvas, self.sampler.select, self.sampler.cache
        if self.sampler.block is not None:
            self._move(self.sampler.block.span(canvas, self.state(self.sampler.block)))
        if canvas.block_started.any() and (step := select.entry_step(canvas)) is not None:
            canvas.set_clock(step)
        canvas.advance_clock(select.skipped_steps(canvas, self.state(select)))
        if self.needs_order:
            canvas.commit_order = select.commit_order(canvas, self.request, self.state(select))
        if self.sampler.query is not None and self.forward.visible is not None:
            visible = self.sampler.query.visible(canvas, self.request, self.state(self.sampler.query))
            self.forward.visible.update(visible)
        if self.forward.last_states is not None:
            canvas.max_logits = self.forward.max_logits
        return cache.query(canvas, self.state(cache))

    def predict(self, query: QuerySpec) -> Evidence:
        """The forward, and what it predicts for the active block."""
        canvas, forward = self.canvas, self.forward
        queries, wanted = forward.queries(query), forward.wanted(query)
        self.recorder.history.append(queries)
        soft = None
        for stage in self.sampler.inputs:
            added = stage.soft(canvas, self.state(stage))
            soft = added if soft is None or added is None else soft + added
        distribution, leave_one_out = forward.distribution(queries, wanted, soft)
        eligible = canvas.eligible if query.only is None else canvas.eligible & query.only.to(canvas.eligible.device)
        more = leave_one_out, forward.attention, forward.row, wanted
        evidence = Evidence(distribution, canvas.window, eligible, self.request, *more)
        if self.sampler.block is not None:
            evidence = self._narrow(self.sampler.block, evidence)
        self._observe(evidence, changed=False)
        self.sampler.cache.observe(evidence, canvas, self.state(self.sampler.cache))
        return evidence

    def _move(self, span: Span) -> None:
        self.canvas.move(span)
        self.progress = span.progress

    def _narrow(self, block: Block, evidence: Evidence) -> Evidence:
        """The evidence of the span that is left once the forward has been seen."""
        span = block.narrow(evidence, self.canvas, self.state(block))
        if span is None:
            return evidence
        self._move(span)
        return replace(evidence, eligible=evidence.eligible & self.canvas.eligible)

    def _observe(self, evidence: Evidence, *, changed: bool) -> None:
        for stage in self.observing[changed]:
            stage.observe(evidence, self.forward.model.embed, self.canvas, self.state(stage))

    def choose(self, evidence: Evidence) -> tuple[Choice, Proposal, Stage]:
        """What is committed, of which proposal, and the stage that names its tokens."""
        canvas, sampler = self.canvas, self.sampler
        for stage in sampler.logits:
            evidence = replace(evidence, distribution=stage.logits(evidence, canvas, self.state(stage)))
            self.distributions.append(Read(stage, evidence.distribution, evidence.positions, evidence.eligible))
            self.forward.highest = self.forward.highest + evidence.distribution.highest()
        self._observe(evidence, changed=True)
        proposal = sampler.propose.propose(evidence, canvas)
        answer = sampler.select.select(proposal, canvas, self.state(sampler.select))
        choice = answer if isinstance(answer, Choice) else Choice(answer, proposal.tokens)
        chosen, tokens = choice.which, choice.tokens
        for widen in sampler.widen:
            chosen = widen.widen(chosen, proposal, canvas, self.state(widen))
        if not self.may_wait:
            chosen = at_least_one(chosen, proposal, self.progress)
        return Choice(chosen, tokens), proposal, sampler.select if choice is answer else sampler.propose

    def decide(self, evidence: Evidence, query: QuerySpec) -> tuple[Decision, Proposal]:
        """What is committed, filled and revised."""
        choice, proposal, by = self.choose(evidence)
        canvas, chosen, evidence = self.canvas, choice.which, proposal.evidence
        if query.must is not None:
            begin = torch.from_numpy(canvas.block_start).to(chosen.device)[:, None]
            first = evidence.eligible & (evidence.positions == begin)
            must = torch.from_numpy(query.must).to(chosen.device)[:, None] & first.any(1, keepdim=True)
            chosen = torch.where(must, first, chosen)
        decision = Decision(Update(chosen, choice.tokens, proposal.score), by, self._revision(chosen, proposal))
        if self.forward.fills:
            decision = commit_filled_rows(decision, proposal, self.filling, self.forward, self.distributions)
        return decision, proposal

    def _consistent(self, decision: Decision) -> Decision:
        """The decision, without tokens that cannot stand beside others of their gap."""
        if not (constrained_spans := self.forward.constrained_spans):
            return decision
        chosen, revision, fill = constrained_spans.consistent(
            self.canvas, decision.chosen, decision.revision, decision.fill
        )
        return replace(decision, chosen=chosen, revision=revision, fill=fill)

    def _revision(self, chosen: Tensor, proposal: Proposal) -> Revision | None:
        """What the revise stages decide together; a position that one reopens no other rewrites."""
        each = [stage.revise(chosen, proposal, self.canvas, self.state(stage)) for stage in self.sampler.revising]
        return reduce(Revision.merge, each) if each else None

    # --- rows that end ---

    def retire(self) -> Iterator[RowFinished]:
        """Removes finished rows."""
        over = self.finished_rows()
        if not over.any():
            return
        yield from self.leave(over)
        self.keep(np.flatnonzero(~over))

    @property
    def rows(self) -> np.ndarray:
        """[B] the number of each live row in the request."""
        return self.canvas.rows

    def finished_rows(self) -> np.ndarray:
        """[B] bool: the live rows that are done; open positions of those that stopped become padding."""
        canvas = self.canvas
        self.stopped = self.ended_rows() | (canvas.finished & (canvas.total < canvas.planned))
        if self.endings:
            final = zip(canvas.tokens_host, canvas.prompt, canvas.settled, strict=True)
            self.stopped |= self.endings.find([row[start:end] for row, start, end in final]) >= 0
        over: np.ndarray = canvas.finished | self.stopped
        if (self.stopped & ~canvas.finished).any():
            canvas.close(self.stopped)
        return over

    def ended_rows(self) -> np.ndarray:
        """[B] bool: the live rows that a finish stage ends."""
        ended = np.zeros(len(self.canvas), dtype=bool)
        for finish in self.sampler.finish:
            ended |= finish.done(self.canvas, self.request)
        return ended

    def leave(self, over: np.ndarray) -> Iterator[RowFinished]:
        """The events of the rows that are done, whose K/V later requests may go on from."""
        self._store_prefixes(over)
        for at in np.flatnonzero(over):
            yield self.recorder.finish_row(int(at), "stop" if self.stopped[at] else "length")

    def keep(self, keep: np.ndarray) -> None:
        """Drops all live rows but these from the canvas, the cache and every state."""
        if self.branching is not None:
            self.branching.keep(keep)
        self.take(keep)

    def take(self, keep: np.ndarray) -> None:
        """`keep`, for hypotheses of rows too."""
        self.canvas.keep(keep)
        self.forward.keep(keep)
        self.endings.keep(keep)
        self.memory = {stage: take_rows(state, keep) for stage, state in self.memory.items()}

    def finished(self, row: int | None = None) -> Finished:
        """The event of the end: of all rows, or of this one."""
        return self.recorder.finished(row)

    def close(self) -> None:
        """Gives up what is leased, and the states."""
        self.forward.reuse.close()
        self.memory.clear()

    # --- rows that enter ---

    def batching_obstacle(self) -> str | None:
        """Why no rows can join the request under way; None where they can."""
        if (reference := self.sampler.select.reference_sampler) is not None:
            return f"{reference} decodes the rows of a request beforehand"
        if self.sampler.block is not None:
            return f"{name_of(self.sampler.block)} lays one window over rows that begin together"
        if self.sampler.branch is not None:
            return f"{name_of(self.sampler.branch)} drafts from what rows were predicted together"
        name = next((name for state in self.memory.values() if (name := unbatchable(state))), None)
        return None if name is None else f"what {name.lstrip('_')} remembers is of the rows that began together"

    def put(self, where: np.ndarray, other: MaskedLoop) -> None:
        """Puts the rows of `other`, which no forward has seen, in place of the finished ones at `where`.

        They take the indices of those. Both loops have the same sampler and block length.
        """
        rows = self.rows[where]
        assign_rows(self.request.source, rows, other.request.source, other.rows)
        self.canvas.put(where, other.canvas)
        self.forward.put(where, other.forward)
        self.endings.put(where, other.endings)
        self.recorder.put(rows, other.canvas.total)
        if self.logprobs is not None and other.logprobs is not None:
            self.logprobs.put(rows, other.logprobs)
        with torch.inference_mode():
            self.memory = {
                stage: scatter_rows(state, where, other.memory[stage]) for stage, state in self.memory.items()
            }
