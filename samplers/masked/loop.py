"""The masked loop: diffusion language models fill in a canvas block by block, every row at its own pace.

One step, as `MaskedLoop.step` has it: the schedule's clock, the positions to query, the forward, the candidates, which
of them are selected, the commit, and the rows that are finished. The loop itself keeps four promises: the first forward
of a row is full (but for a prefix that it reuses), an open row commits at least one position a step, the mask id is
never committed, and logits that are not finite are an error.

What stages and the request ask for beyond that hooks into the step; `MaskedLoop.compose` lists it once per request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import ModelError, SpecError
from pardec.models.finite import demand_head
from pardec.models.model import LanguageModel

from ..batching import scatter_rows, take_rows, unbatchable
from ..cards import name_of
from ..endings import Endings
from ..events import Event, Finished, RowFinished, Step
from ..host_transfer import upload
from ..logprobs import LogprobRecorder
from ..ops.confidence import suits_numpy
from ..ops.rank import best
from ..registry import resolve
from ..request import conditioned_model
from ..rng import assign_rows
from ..trace import UNCOMMITTED
from ..traits import Trait
from . import compatibility
from .canvas import Canvas, Revision, Span, Update
from .captured_step import CapturedStep, obstacle
from .compatibility import Read, demand_finite, fit, mask_chosen
from .contracts import (
    Block,
    Cache,
    Choice,
    Decision,
    Evidence,
    Finish,
    Inputs,
    MaskedSampler,
    Proposal,
    QuerySpec,
    Request,
    Select,
    Stage,
    Stateful,
)
from .hypotheses import Branching
from .predict import DraftedForward, LeaveOneOutForward, MaskedForward
from .query_plan import Queries, visible_open
from .recorder import Before, CommittedLogprobs, TraceRecorder

_SPARE_FORWARDS = 100  # a row may take this many forwards more than it has positions to fill
_FORWARDS_WITH_REVISION = 100  # forwards allowed per position if committed tokens may be masked again
_LEAST_SCORE = torch.finfo(torch.float32).min


def decode(model: LanguageModel, sampler: MaskedSampler, request: Request, *, steps: bool = True) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Step` and `RowFinished` events, and at last `Finished`.

    Without `steps` there are no `Step` events, which saves a transfer per step.
    """
    loop, late = MaskedLoop(model, sampler, request), list[Step]()

    def note(before: Before, number: int) -> None:
        if steps:
            late.append(loop.recorder.step(before, number))

    loop.note_late = note
    try:
        yield loop.recorder.started()
        yield from loop.retire()
        while len(loop.canvas.rows):
            before = loop.step()
            while late:
                yield late.pop(0)
            if steps and before is not None:
                yield loop.recorder.step(before)
            yield from loop.retire()
        yield loop.recorder.finished()
    finally:
        loop.close()


class MaskedLoop:
    """The masked loop of one request.

    Hooks, in the order of a step; a request without a feature has none of its hooks:
        before_query: run the block stage, the schedule's clock, and what a cache or query stage depends on.
        with_evidence: each adds to the evidence, or observes it.
        with_distribution: each changes the distribution that candidates come from, or observes it.
        with_decision: each changes what is committed: revisions, rows that are filled, constrained spans, hypotheses.
        after_commit: rows that are cut, log-probabilities, prefixes to store.
        ended: each says which live rows end though positions are open, [B] bool.
    """

    def __init__(self, model: LanguageModel, sampler: MaskedSampler, request: Request, *, columns: int = 0) -> None:
        """`columns`: the least number of columns of the canvas."""
        decoding_config = model.decoding_config
        if decoding_config.mask_id is None:
            raise ModelError(f"{model.name} has no mask token: it is no masked diffusion model")
        block_causal = decoding_config.attention == "block-causal"
        if block_causal and not (request.absolute and request.block_length == decoding_config.block):
            raise ModelError(f"{model.name} decodes only in blocks of {decoding_config.block} that begin at position 0")
        if decoding_config.uniform and request.cfg is not None:
            raise SpecError(
                f"cfg={request.cfg} needs the model without its prompt, whose tokens become masks, and {model.name} has"
                " no mask token",
                "leave cfg out",
            )
        demand_head(model)
        sampler = fit(sampler, model)
        compatibility.check(sampler, model, request)
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
        self.revising = sampler.revising
        canvas.revises = bool(self.revising)
        canvas.moves = sampler.moving is not None or sampler.growing is not None
        if (total := sampler.select.total_steps(canvas)) is not None:
            canvas.total_steps = total
        self.memory: dict[int, Any] = {id(stage): stage.start(canvas) for stage in sampler.stateful}
        self.branching = None if sampler.branch is None else Branching(self, sampler.branch)
        kind = LeaveOneOutForward if Trait.LEAVE_ONE_OUT in sampler.traits else MaskedForward
        kind = kind if sampler.select.drafts_above is None else DraftedForward
        self.forward = kind(model, canvas, sampler, request, self._soft if sampler.inputs else None)
        if self.forward.last_states is not None:
            canvas.max_logits = self.forward.max_logits
        self.logprobs = LogprobRecorder.of(request, canvas, canvas.length, model.device)
        self.recorder = TraceRecorder(canvas, self.forward.sequences, self.logprobs)
        if sampler.growing is not None:
            canvas.begin_short(sampler.growing.begins_with)
        self.endings = Endings(request.stops, len(canvas))
        self.distributions: list[Read] = []  # the step's distributions, in order
        self.progress: np.ndarray | None = None  # [B] a row commits at least one position before it; None: any
        self.on_host = model.device.type == "cpu"
        self.may_wait = Trait.MAY_WAIT in sampler.select.provides
        self.sure_steps = _SPARE_FORWARDS  # no row can have taken too many forwards before this many steps
        self.before: Before | None = None  # the canvas before the step, if it is known
        # Takes a step that was read after the launch of the next one, and its number; None: every step is read at once.
        self.note_late: Callable[[Before, int], None] | None = None
        self.prepared = False  # whether the logits stages are prepared for the coming change
        self.captured: CapturedStep | None = None
        self.compose()

    # --- one step ---

    @torch.inference_mode()
    def step(self) -> Before | None:
        """One forward for every live row, and its commits.

        Returns the canvas before it, or None if its tokens are to be read with the next step (`note_late`).
        """
        canvas, self.before = self.canvas, None
        if not canvas.unread:
            self.look_before()
        for prepare in self.before_query:
            prepare()
        query = self.sampler.cache.query(canvas, self.cache_state)
        queries = self.forward.planner.queries(query)
        self.recorder.history.append(queries)
        if self.captured is None or not self.captured.run(query, queries):
            self.look_before()
            evidence = self.predict(query, queries)
            decision = self.decide(evidence, query)
            self.commit(decision)
            for follow in self.after_commit:
                follow(decision)
        self.sure_steps -= 1
        if self.sure_steps < 0:
            self._demand_progress()
        return None if canvas.unread else self.before

    def look_before(self) -> Before:
        """Copies the canvas to `before`, once per step; reads its tokens."""
        canvas = self.canvas
        if self.before is None:
            self.before = Before(canvas.open_host.copy(), canvas.tokens_host.copy() if canvas.revises else None)
        return self.before

    def predict(self, query: QuerySpec, queries: Queries) -> Evidence:
        """Runs a forward for every live row; returns its predictions for the active block."""
        canvas, forward = self.canvas, self.forward
        wanted = forward.planner.wanted(query)
        distribution = forward.predict(queries, wanted)
        eligible = (
            canvas.eligible if query.only is None else canvas.eligible & upload(query.only, canvas.eligible.device)
        )
        evidence = Evidence(distribution, canvas.window, eligible, self.request, known=wanted)
        for complete in self.with_evidence:
            evidence = complete(evidence)
        self.distributions = [Read(None, distribution, evidence.positions, evidence.eligible)]
        # On a GPU, reading the value now would synchronize; `commit` returns it.
        if self.on_host and not math.isfinite(forward.highest.item()):
            demand_finite(self.distributions, forward)
        return evidence

    def choose(self, evidence: Evidence) -> tuple[Choice, Proposal, Stage]:
        """Chooses the tokens to commit; also returns the proposal and the stage that determined the tokens."""
        canvas, sampler = self.canvas, self.sampler
        for change in self.with_distribution:
            evidence = change(evidence)
        proposal = sampler.propose.propose(evidence, canvas)
        answer = sampler.select.select(proposal, canvas, self.select_state)
        if isinstance(answer, Choice):
            chosen, tokens, source = answer.which, answer.tokens, cast("Stage", sampler.select)
        else:
            chosen, tokens, source = answer, proposal.tokens, sampler.propose
        for stage in sampler.widen:
            chosen = stage.widen(chosen, proposal, canvas, self.state(stage))
        if not self.may_wait:
            chosen = at_least_one(chosen, proposal, self.progress)
        return Choice(chosen, tokens), proposal, source

    def decide(self, evidence: Evidence, query: QuerySpec) -> Decision:
        """Decides what to commit, fill and revise."""
        choice, proposal, source = self.choose(evidence)
        chosen = choice.which
        if query.must is not None:
            chosen = _with_first(chosen, proposal.evidence, self.canvas, query.must)
        decision = Decision(Update(chosen, choice.tokens, proposal.score), source)
        for change in self.with_decision:
            decision = change(decision, proposal, evidence)
        return decision

    def commit(self, decision: Decision) -> None:
        """Writes the decision to the canvas. The error for a committed mask id names the stage that chose it."""
        forward = self.forward
        try:
            highest = self.canvas.commit(
                decision.chosen,
                fill=decision.fill,
                revision=decision.revision,
                beside=forward.highest,
                written=None if self.branching is None else self.branching.written,
            )
        except SpecError as error:
            if not math.isfinite(float(forward.highest)):  # report the possible cause first
                demand_finite(self.distributions, forward)
            revision = decision.revision
            edits = [(stage, None if revision is None else revision.rewrite) for stage in self.revising]
            raise mask_chosen(error, [(decision.token_source, decision.chosen), *edits], self.canvas) from None
        if not math.isfinite(highest):
            demand_finite(self.distributions, forward)

    # --- rows that end ---

    def retire(self) -> Iterator[RowFinished]:
        """Removes finished rows and yields their events."""
        over = self.finished_rows()
        if over.any():
            yield from self.leave(over)
            if len(rest := np.flatnonzero(~over)):
                self.keep(rest)
            else:
                self.canvas.rows = rest  # the request is complete: no state is read again

    def finished_rows(self) -> np.ndarray:
        """[B] bool: the live rows that are done; open positions of those that stopped become padding."""
        finished = self.canvas.finished
        self.stopped: np.ndarray | None = None  # [B] bool; None: no row has
        if not self.ended:
            return finished
        self.stopped = reduce(np.logical_or, [ended() for ended in self.ended])
        over: np.ndarray = finished | self.stopped
        if (self.stopped & ~finished).any():
            self.canvas.close(self.stopped)
        return over

    def leave(self, over: np.ndarray) -> Iterator[RowFinished]:
        """Yields the events of finished rows and stores their K/V for later requests."""
        self._store_prefixes(over)
        for at in np.flatnonzero(over):
            stopped = self.stopped is not None and self.stopped[at]
            yield self.recorder.finish_row(int(at), "stop" if stopped else "length")

    # --- hooks of a step ---

    def compose(self) -> None:
        """Sets the hooks that the stages and the request need, and looks up the states that every step reads."""
        self._bind()
        sampler, select, cache, forward = self.sampler, self.sampler.select, self.sampler.cache, self.forward
        branching = self.branching
        stores_prefixes = forward.reuse.prefixes is not None
        self.cuts = sampler.cutting
        self.late = [stage for stage in sampler.inputs if Trait.OBSERVES_CHANGED_LOGITS in stage.provides]
        self.early = [stage for stage in sampler.inputs if stage not in self.late]

        before: list[Callable[[], None]] = [] if branching is None else [branching.expand]
        if sampler.block is not None:
            before.append(self._move_block)
        if type(select).entry_step is not Select.entry_step:
            before.append(self._enter_block)
        if type(select).skipped_steps is not Select.skipped_steps:
            before.append(self._skip_steps)
        if Trait.KNOWN_ORDER in cache.requires:
            before.append(self._tell_order)
        if sampler.query is not None:
            before.append(self._leave_out)

        evidence: list[Callable[[Evidence], Evidence]] = [*forward.complete]
        if sampler.block is not None:
            evidence.append(self._narrow_block)
        if self.early:
            evidence.append(self._observe_forward)
        if type(cache).observe is not Cache.observe:
            evidence.append(self._observe_cache)

        distribution: list[Callable[[Evidence], Evidence]] = [self._change_logits] if sampler.logits else []
        if self.late:
            distribution.append(self._observe_logits)

        decision: list[Callable[[Decision, Proposal, Evidence], Decision]] = [self._revise] if self.revising else []
        after: list[Callable[[Decision], None]] = []
        if sampler.filling:
            decision.append(self._fill)
        if forward.limits is not None:
            decision.append(self._consistent)
        if branching is not None:
            decision.append(branching.compare)
            after.append(branching.collapse)
        if self.cuts:
            decision.append(self._find_ends)
            after.append(self._cut)
        if sampler.growing is not None:
            decision.append(self._find_growth)
            after.append(self._grow)
        if self.logprobs is not None and forward.raw is not None:
            logprobs = CommittedLogprobs(self.canvas, forward.raw, self.logprobs)
            decision.append(logprobs.decide)
            after.append(logprobs.record)
        if stores_prefixes:
            decision.append(self._find_new)
            after.append(self._store_new)

        ended: list[Callable[[], np.ndarray]] = []
        if any(type(stage).done is not Finish.done for stage in sampler.finish):
            ended.append(self.ended_rows)
        if self.cuts or sampler.growing is not None:
            ended.append(self._cut_rows)
        if self.endings:
            ended.append(self._stopped_rows)

        self.before_query, self.with_evidence, self.with_distribution = (
            tuple(before),
            tuple(evidence),
            tuple(distribution),
        )
        self.with_decision, self.after_commit = tuple(decision), tuple(after)
        self.ended: tuple[Callable[[], np.ndarray], ...] = tuple(ended)
        if self.captured is None:
            self.captured = CapturedStep.of(self)
        else:
            self.captured.obstacle = obstacle(self)

    def state(self, stage: Stateful) -> Any:
        """The state of `stage` for this request."""
        return self.memory[id(stage)]

    def _bind(self) -> None:
        """Looks up the states that every step reads."""
        self.cache_state, self.select_state = self.state(self.sampler.cache), self.state(self.sampler.select)

    # The clock and the block.

    def _move_block(self) -> None:
        block, held = self._block(), self.canvas.hold_block
        state = self.state(block)
        before = dict(getattr(state, "__dict__", {})) if held.any() else {}
        self._move(block.span(self.canvas, state))
        # A held row stays in its block, so that the stage has to begin the next one at a later step.
        for name, old in before.items():
            if isinstance(old, np.ndarray):
                rows = held.reshape(-1, *[1] * (old.ndim - 1))
                setattr(state, name, np.where(rows, old, getattr(state, name)))

    def _narrow_block(self, evidence: Evidence) -> Evidence:
        """Applies `Block.narrow` after the forward; the evidence is then of the smaller span."""
        block = self._block()
        span = block.narrow(evidence, self.canvas, self.state(block))
        if span is None:
            return evidence
        self._move(span)
        return replace(evidence, eligible=evidence.eligible & self.canvas.eligible)

    def _block(self) -> Block:
        assert self.sampler.block is not None, "there is a block stage"
        return self.sampler.block

    def _move(self, span: Span) -> None:
        self.canvas.move(span)
        self.progress = span.progress

    def _enter_block(self) -> None:
        canvas = self.canvas
        if canvas.block_started.any() and (step := self.sampler.select.entry_step(canvas)) is not None:
            canvas.set_clock(step)

    def _skip_steps(self) -> None:
        self.canvas.advance_clock(self.sampler.select.skipped_steps(self.canvas, self.select_state))

    # Positions and inputs of a forward.

    def _tell_order(self) -> None:
        self.canvas.commit_order = self.sampler.select.commit_order(self.canvas, self.request, self.select_state)

    def _leave_out(self) -> None:
        query, visible = self.sampler.query, self.forward.visible
        assert query is not None, "there is a query stage"
        assert visible is not None, "made for it"
        visible.update(query.visible(self.canvas, self.request, self.state(query)))

    def _soft(self) -> Tensor | None:
        """[B, W, E]: the sum of the vectors that inputs stages add to the inputs of the block."""
        soft = None
        for stage in self.sampler.inputs:
            added = stage.soft(self.canvas, self.state(stage))
            soft = added if soft is None or added is None else soft + added
        return soft

    # Hooks that read a forward.

    def _observe_forward(self, evidence: Evidence) -> Evidence:
        return self._observe(evidence, self.early)

    def _observe_logits(self, evidence: Evidence) -> Evidence:
        return self._observe(evidence, self.late)

    def _observe(self, evidence: Evidence, stages: list[Inputs]) -> Evidence:
        for stage in stages:
            other = stage.observe(evidence, self.forward.model.embed, self.canvas, self.state(stage))
            if other is not None and other is not evidence.distribution:
                evidence = replace(evidence, distribution=other)
        return evidence

    def _observe_cache(self, evidence: Evidence) -> Evidence:
        self.sampler.cache.observe(evidence, self.canvas, self.cache_state)
        return evidence

    def prepare_logits(self) -> None:
        """Runs the logits stages' work on the host, once before they change logits."""
        if not self.prepared:
            for stage in self.sampler.logits:
                stage.prepare(self.canvas, self.state(stage))
        self.prepared = True

    def _change_logits(self, evidence: Evidence) -> Evidence:
        self.prepare_logits()
        self.prepared = False
        return self.changed_logits(evidence)

    def changed_logits(self, evidence: Evidence) -> Evidence:
        """Lets the logits stages change the distribution."""
        for stage in self.sampler.logits:
            evidence = replace(evidence, distribution=stage.logits(evidence, self.canvas, self.state(stage)))
            self.distributions.append(Read(stage, evidence.distribution, evidence.positions, evidence.eligible))
            self.forward.highest = self.forward.highest + evidence.distribution.highest()
        return evidence

    # Hooks that change a decision.

    def _revise(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        """Adds the merged revisions of all revise stages; a position that one reopens is not rewritten by another."""
        chosen = decision.chosen.which
        each = [stage.revise(chosen, proposal, self.canvas, self.state(stage)) for stage in self.revising]
        return replace(decision, revision=reduce(Revision.merge, each))

    def _fill(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        """Commits the likeliest token at every open position of rows that a finish stage fills."""
        canvas, predictions = self.canvas, self.forward.predictions
        assert predictions is not None, "made for it"
        rows = reduce(torch.logical_or, [stage.fill(predictions, proposal, canvas) for stage in self.sampler.filling])
        some = np.ones(len(canvas), dtype=bool)
        if self.on_host:
            some = rows.numpy()
            if not some.any():
                return decision
        # On a GPU, reading which rows are filled would synchronize: the predictions of all are made.
        which, columns = visible_open(canvas, some)
        which &= rows[:, None]
        distribution = predictions.at(columns)
        self.distributions.append(Read(None, distribution, columns, which.gather(1, columns)))
        ids, probability = distribution.greedy
        fill = Update(
            which,
            torch.zeros_like(canvas.tokens).scatter_(1, columns, ids),
            torch.zeros_like(canvas.commit_score).scatter_(1, columns, probability),
        )
        rest = ~rows[:, None]
        revision = None if decision.revision is None else decision.revision.only(rest)
        return Decision(decision.chosen.only(rest), decision.token_source, revision, fill, columns)

    def _consistent(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        """Removes tokens that are inconsistent with the other tokens of their constrained span."""
        limits = self.forward.limits
        assert limits is not None, "there are some"
        chosen, revision, fill = limits.consistent(decision.chosen, decision.revision, decision.fill)
        return replace(decision, chosen=chosen, revision=revision, fill=fill)

    # Rows that are cut, that stop, or that take too many forwards.

    def _find_ends(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        """Finds the new end of each row: the smallest end that a cutting stage returns in this step."""
        canvas, predictions = self.canvas, self.forward.predictions
        assert predictions is not None, "made for it"
        self._ends: np.ndarray = canvas.total  # [B]
        if predictions.whole:
            self._ends = reduce(np.minimum, (stage.cut(predictions, canvas, self.request) for stage in self.cuts))
        return decision

    def _cut(self, decision: Decision) -> None:
        if (self._ends < self.canvas.total).any():
            self.canvas.cut(self._ends)

    def _find_growth(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        growing, predictions = self.sampler.growing, self.forward.predictions
        assert growing is not None, "there is a stage that grows rows"
        assert predictions is not None, "made for it"
        growth = growing.grow(predictions, decision.chosen.which, proposal, self.canvas, self.request)
        self.canvas.read_later({"at": growth.at, "count": growth.count}, self._note_growth)
        return replace(decision, chosen=decision.chosen.only(~growth.wait[:, None]))

    def _note_growth(self, read: Mapping[str, np.ndarray]) -> None:
        self._growth: Mapping[str, np.ndarray] = read

    def _grow(self, decision: Decision) -> None:
        if self._growth["count"].any():
            self.canvas.grow(self._growth["at"], self._growth["count"])

    def _cut_rows(self) -> np.ndarray:
        """[B] bool: the live rows that were cut and are complete."""
        canvas = self.canvas
        return canvas.finished & (canvas.total < canvas.planned)

    def ended_rows(self) -> np.ndarray:
        """[B] bool: the live rows that a finish stage ends."""
        ended = np.zeros(len(self.canvas), dtype=bool)
        for finish in self.sampler.finish:
            ended |= finish.done(self.canvas, self.request)
        return ended

    def _stopped_rows(self) -> np.ndarray:
        """[B] bool: the live rows that `Request.stops` ends, such as stop strings."""
        canvas = self.canvas
        final = zip(canvas.tokens_host, canvas.prompt, canvas.settled, strict=True)
        return self.endings.find([row[start:end] for row, start, end in final]) >= 0

    def _demand_progress(self) -> None:
        """Raises SpecError for a row that took far more forwards than it has positions and would never end."""
        canvas = self.canvas
        self.sure_steps = _SPARE_FORWARDS
        if self.may_wait:
            return
        positions = canvas.planned - canvas.prompt
        most = _SPARE_FORWARDS + positions * (_FORWARDS_WITH_REVISION if canvas.revises else 1)
        if self.sampler.growing is not None:  # a step that lengthens a row may commit nothing
            most = most + positions
        if (stuck := canvas.nfe > most).any():
            row, forwards = canvas.rows[stuck][0], canvas.nfe[stuck][0]
            raise SpecError(
                f"row {row} has masks left after {forwards} forwards: its sampler commits nothing more",
                hint="use another cache or block stage: two stages of this spec wait for each other",
            )
        self.sure_steps = min(_SPARE_FORWARDS, int((most - canvas.nfe).min()))

    # Prefixes that later requests reuse.

    def _find_new(self, decision: Decision, proposal: Proposal, evidence: Evidence) -> Decision:
        self._new: np.ndarray = self.canvas.nfe == 0  # [B] whether this is the row's first forward
        return decision

    def _store_new(self, decision: Decision) -> None:
        if self._new.any():
            self.recorder.reused[self.canvas.rows[self._new]] = self.forward.reuse.length[self._new]
            self._store_prefixes(self._new)

    def _store_prefixes(self, which: np.ndarray) -> None:
        """Stores the K/V of the final tokens of these rows ([B] bool) for later requests."""
        if self.forward.reuse.prefixes is None:
            return
        final = self.sampler.cache.final(self.cache_state)
        if final is None:
            return
        for at in np.flatnonzero(which).tolist():
            self.forward.reuse.store(at, self.canvas.tokens_host[at, : int(final[at])])

    # --- rows that leave and join ---

    @property
    def rows(self) -> np.ndarray:
        """[B]: the index of each live row in the request."""
        return self.canvas.rows

    def keep(self, keep: np.ndarray) -> None:
        """Drops all live rows but these from the canvas, the cache and every state."""
        if self.branching is not None:
            self.branching.keep(keep)
        self.canvas.keep(keep)
        self.forward.keep(keep)
        self.endings.keep(keep)
        self.memory = take_rows(self.memory, keep)
        self._bind()

    def batching_obstacle(self) -> str | None:
        """The reason why no rows can join the running request; None if they can."""
        if (reference := self.sampler.select.reference_sampler) is not None:
            return f"{reference} decodes the rows of a request beforehand"
        if self.sampler.block is not None:
            return f"{name_of(self.sampler.block)} needs rows that begin together"
        if self.sampler.branch is not None:
            return f"{name_of(self.sampler.branch)} drafts only for rows that begin together"
        name = next((name for state in self.memory.values() if (name := unbatchable(state))), None)
        return None if name is None else f"the state {name.lstrip('_')} is only for rows that begin together"

    def put(self, where: np.ndarray, other: MaskedLoop) -> None:
        """Replaces the finished rows at `where` by the rows of `other`, which have had no forward.

        The new rows take their indices. Both loops have the same sampler and block length.
        """
        rows = self.rows[where]
        assign_rows(self.request.source, rows, other.request.source, other.rows)
        self.canvas.put(where, other.canvas)
        self.forward.put(where, other.forward)
        self.endings.put(where, other.endings)
        self.recorder.put(rows, other.canvas.planned)
        if self.logprobs is not None and other.logprobs is not None:
            self.logprobs.put(rows, other.logprobs)
        theirs = {mine: other.memory[stage] for mine, stage in zip(self.memory, other.memory, strict=True)}
        with torch.inference_mode():
            self.memory = scatter_rows(self.memory, where, theirs)
        self.compose()

    def finished(self, row: int | None = None) -> Finished:
        """The final event, with the results of all rows or of this one."""
        return self.recorder.finished(row)

    def close(self) -> None:
        """Returns the leases of the prefix cache and drops the states and the hooks, which refer to the loop."""
        self.forward.close()
        if self.captured is not None:
            self.captured.close()
            self.captured = None
        self.memory.clear()
        self.before_query = self.with_evidence = self.with_distribution = self.with_decision = ()
        self.after_commit = self.ended = ()
        self.branching = self.note_late = None
        self.canvas.leave_unread()


def at_least_one(chosen: Tensor, proposal: Proposal, progress: np.ndarray | None = None) -> Tensor:
    """Adds the best candidate of each row where `chosen` [B, W] has none before `progress` [B] (None: anywhere).

    Choices that are not eligible are removed. If a forward predicted no candidate before `progress`, the best of the
    row is added: every step commits a token. A method may score open positions -inf to have them committed last.
    """
    eligible = proposal.evidence.eligible
    chosen = chosen & eligible
    if progress is None and suits_numpy(chosen):
        host, may = chosen.numpy(), eligible.numpy()
        if (none := ~host.any(1)).any():
            likeliest = np.where(may, np.maximum(proposal.score.numpy(), _LEAST_SCORE), -np.inf).argmax(1)[none]
            host[none, likeliest] = may[none, likeliest]
        return chosen
    first = eligible
    if progress is not None:
        before = proposal.evidence.positions < upload(progress, chosen.device)[:, None]
        first = eligible & (before | ~(before & eligible).any(1, keepdim=True))
    score = proposal.score.clamp(min=_LEAST_SCORE).masked_fill(~first, -torch.inf)
    return chosen | (best(score) & first & ~(chosen & first).any(1, keepdim=True))


def _with_first(chosen: Tensor, evidence: Evidence, canvas: Canvas, must: np.ndarray) -> Tensor:
    """`chosen` [B, W], but in rows where `must` [B] only the block's first position, if it is open."""
    start = upload(canvas.block_start, chosen.device)[:, None]
    first = evidence.eligible & (evidence.positions == start)
    return torch.where(upload(must, chosen.device)[:, None] & first.any(1, keepdim=True), first, chosen)


def _reference_text(model: LanguageModel, reference: str, sampler: MaskedSampler, request: Request) -> Tensor:
    """[B, L + 1]: the finished text of the select's reference sampler, -1 where it left masks.

    It stops where the sampler itself stops.
    """
    stops = tuple(finish for finish in sampler.finish if finish not in sampler.filling)
    request = replace(request, logprobs=None)
    *_, last = decode(model, replace(resolve(reference), finish=stops), request, steps=False)
    assert isinstance(last, Finished)
    text = torch.from_numpy(np.where(last.trace.commit_step == UNCOMMITTED, -1, last.tokens))
    return torch.nn.functional.pad(text, (0, 1), value=-1).to(model.device)
