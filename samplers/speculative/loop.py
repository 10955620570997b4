"""The verify loop: autoregressive models, several tokens a forward, every row at its own pace.

One round: the drafter's tokens, one forward over them, the law behind each (processors, temperature, filters), the
acceptance, the commit, and what drafter and length controller make of it. Between rounds the cache holds all of a
row's committed tokens but the last. The first round feeds the prompt and commits the first token.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import ModelError, PardecError
from pardec.models.hidden import Hidden
from pardec.models.model import LanguageModel

from ..batching import put_rows, take_rows, unjoinable
from ..conditioning import conditioned_model
from ..endings import Endings
from ..events import Accepted, Event, Finished, RowFinished, Started
from ..host_transfer import to_host
from ..ops.processing import Processing
from ..request import Request
from ..rng import assign_rows
from .contracts import DecodeContext, Draft, Outcome, SpeculativeSampler, TargetDistributions, Verdict
from .forward import VerifyForward
from .recorder import TraceRecorder
from .sequences import Sequences
from .uniforms import RoundUniforms


def decode(
    model: LanguageModel, sampler: SpeculativeSampler, request: Request, *, steps: bool = True
) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Accepted` and `RowFinished` events, and at last `Finished`.

    Without `steps` no `Accepted` is told.
    """
    loop = VerifyLoop(model, sampler, request)
    try:
        yield loop.started()
        yield from loop.retire()  # rows that ask for nothing
        while len(loop.text):
            before = loop.text.length.copy()
            loop.round()
            if steps:
                yield loop.accepted_event(before)
            yield from loop.retire()
        yield loop.finished()
    finally:
        loop.memory.clear()  # states may hold the scene, which reaches them: caches would wait for the collector


class VerifyLoop:
    """The state of one request; it dies with it."""

    def __init__(self, model: LanguageModel, sampler: SpeculativeSampler, request: Request) -> None:
        if model.decoding_config.attention != "causal":
            raise ModelError(f"{model.name} is no autoregressive model")
        finite.demand_head(model)
        if request.conditions:
            model = conditioned_model(model, request, request.prefix)
        self.model, self.sampler, self.request = model, sampler, request
        prompts = [canvas[:given] for canvas, given in zip(request.canvases, request.prompts, strict=True)]
        self.text = Sequences(
            prompts,
            [len(canvas) for canvas in request.canvases],
            pad_id=model.decoding_config.pad_id,
            device=model.device,
        )
        self.forward = VerifyForward(model, self.text, sampler.width(model))
        self.process = Processing(request, self.text)
        self.memory: dict[int, Any] = {}
        self.read: dict[str, np.ndarray] = {}  # what the host knows of the round's verdict
        self.state = partial(_remembered, self.memory)  # what a stage remembers of this request
        self.context = DecodeContext(model, request, self.text, self.process, self.forward.cache, sampler, self.state)
        self.stops = np.array(request.stop_ids, dtype=np.int64)
        self.endings = Endings(request.stops, len(self.text))
        self.ended = np.zeros(len(self.text), dtype=bool)  # a live row ends with its newest token
        self.recorder = TraceRecorder(self.text, None if request.allowed is None else request.allowed.forced)

    @torch.inference_mode()
    def round(self) -> None:
        """One forward for every live row, and what it commits."""
        text, sampler = self.text, self.sampler
        uniforms = RoundUniforms(self.request.source, text.rows, text.nfe.copy(), text.device)
        if not self.forward.fed:
            draft, raw, hidden = self._begin()
        else:
            draft = sampler.draft.propose(self.context, text.room - 1, uniforms, self.state(sampler.draft))
            raw, hidden = self.forward.verify(draft, sampler.draft.hidden_layers)
        distributions = TargetDistributions(raw, self.process(raw, draft), greedy=not self.request.temperature)
        verdict = sampler.accept.accept(draft, distributions, uniforms, self.state(sampler.accept))
        self.forward.take(draft, verdict)
        text.count()
        before = text.length.copy()
        self.read = _read(draft, verdict)
        if not np.isfinite(self.read.get("highest", 0.0)):
            raise self.state(sampler.draft).failure()
        gained = self._commit(draft, distributions, verdict)
        self.recorder.add(text.rows, draft, self.read)
        outcome = Outcome(draft, verdict, distributions, before, gained, hidden)
        sampler.draft.observe(outcome, self.context, self.state(sampler.draft))
        if sampler.length is not None:
            sampler.length.observe(outcome, self.context, self.state(sampler.length))

    def _begin(self) -> tuple[Draft, Tensor, Hidden | None]:
        """The forward over the prompts; stages that remember start with it."""
        last: list[Tensor] = []
        order: list[np.ndarray] = []
        for stage in self.sampler.stages:
            self.memory[id(stage)] = stage.start(self.context)
        drafter = self.sampler.draft
        for rows, hidden in self.forward.prompt(narrow=not drafter.reads_prompt):
            last.append(hidden.logits())
            order.append(rows)
            if drafter.reads_prompt:
                drafter.read_prompt(rows, hidden, self.context, self.state(drafter))
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(self.text.device)
        return Draft.none(self.text), torch.cat(last)[back], None

    def _commit(self, draft: Draft, distributions: TargetDistributions, verdict: Verdict) -> np.ndarray:
        """Appends the accepted path and the next token, cut where the row ends and at the limit; [B] counts."""
        path, count, text = verdict.path, self.read["count"], self.text
        made, width = self.read["next"][:, None], path.shape[1]
        if width > 1:
            taken = self.read["taken"]
            drafted = np.concatenate((taken[:, 1:], taken[:, :1]), 1)  # the last column is never read as it is
            made = np.where(np.arange(width) == count[:, None], made, drafted)
        limited = np.minimum(count + 1, text.room)
        ends = (made[:, :, None] == self.stops).any(2) & (np.arange(width) < limited[:, None])
        self.ended = ends.any(1)
        counts: np.ndarray = np.where(self.ended, ends.argmax(1) + 1, limited)
        if self.endings:
            rows = zip(text.host, text.prompt, text.length, made, counts, strict=True)
            final = [np.concatenate((row[start:end], new[:count])) for row, start, end, new, count in rows]
            stops = self.endings.within(final)
            counts = np.where(stops >= 0, stops - (text.length - text.prompt), counts)
            self.ended |= stops >= 0
        text.commit(made, counts, self._scores(draft, distributions, path, made, counts))
        return counts

    def _scores(
        self, draft: Draft, distributions: TargetDistributions, path: Tensor, made: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """[B, D] float32: the probability that the model gave each committed token; 0 behind counts[b].

        Raises what names who gave the law behind a node that a token comes from, where that is none.
        """
        row, column = np.nonzero(np.arange(made.shape[1]) < counts[:, None])
        device = path.device
        where, place, token = (torch.from_numpy(each).to(device) for each in (row, column, made[row, column]))
        node = torch.zeros_like(where) if path.shape[1] == 1 else path[where, place]
        raw = distributions.raw[:, 0] if path.shape[1] == 1 else distributions.raw[where, node]
        parts = {"score": raw.softmax(-1).gather(-1, token[:, None])[:, 0]}
        if distributions.logits is not distributions.raw:
            parts["highest"] = distributions.logits[where, node].amax(-1)
        read = to_host(parts)
        if not all(np.isfinite(each).all() for each in read.values()):
            raise self._failure(draft, distributions, where, node)
        scores = np.zeros(made.shape, dtype=np.float32)
        scores[row, column] = read["score"]
        return scores

    def _failure(self, draft: Draft, distributions: TargetDistributions, row: Tensor, node: Tensor) -> PardecError:
        """Why the law behind some of these nodes [N] of live rows [N] is none."""
        found = None
        if not finite.sound(distributions.raw[row, node]).all():
            found = finite.failure(self.model, self.forward.runs, cfg=self.request.cfg)
        else:
            found = self.process.failure(distributions.raw, draft, row, node)
        return found or ModelError(f"{self.model.name} gives logits that are not finite")

    # --- what is told ---

    def started(self) -> Started:
        """The rows before the first forward."""
        text = self.text
        return Started(text.host.copy(), self._open(text.length), text.prompt.copy())

    def accepted_event(self, before: np.ndarray) -> Accepted:
        """The round just made; copies, so that it may be kept."""
        text = self.text
        still, was = self._open(text.length), self._open(before)
        return Accepted(
            number=len(self.forward.fed) - 1,
            rows=text.rows,
            nfe=text.nfe.copy(),
            tokens=text.host.copy(),
            open=still,
            committed=was & ~still,
            settled=text.length.copy(),
            gained=text.length - before,
        )

    def _open(self, length: np.ndarray) -> np.ndarray:
        """[n, L] bool: the positions that are still to come."""
        place = np.arange(self.text.host.shape[1])
        still: np.ndarray = (place >= length[:, None]) & (place < self.text.limit[:, None])
        return still

    # --- rows that end ---

    def retire(self) -> Iterator[RowFinished]:
        """Lets finished rows leave."""
        over = self.over()
        if not over.any():
            return
        yield from self.leave(over)
        self.keep(np.flatnonzero(~over))

    @property
    def rows(self) -> np.ndarray:
        """[B] the number of each live row in the request."""
        return self.text.rows

    def over(self) -> np.ndarray:
        """[B] bool: the live rows that are done."""
        done: np.ndarray = self.ended | (self.text.room == 0)
        return done

    def leave(self, over: np.ndarray) -> Iterator[RowFinished]:
        """Tells of the rows that are done."""
        for at in np.flatnonzero(over):
            yield self.recorder.leave(int(at), "stop" if self.ended[at] else "length")

    def keep(self, keep: np.ndarray) -> None:
        """The text, the cache and every state keep these live rows only."""
        self.text.keep(keep)
        self.forward.keep(keep)
        self.ended = self.ended[keep]
        self.endings.keep(keep)
        self.memory.update({stage: take_rows(state, keep) for stage, state in self.memory.items()})

    def finished(self, row: int | None = None) -> Finished:
        """All rows are done, or this one."""
        return self.recorder.finished(self.forward, row)

    # --- rows that enter ---

    def alone(self) -> str | None:
        """Why rows cannot join what is under way; None where they can."""
        if self.request.allowed is not None:
            return "what is allowed is laid out for the rows of one request"
        if any(hasattr(processor, "by_row") for processor in self.request.processors):
            return "a logits processor counts the rows of one request"
        name = next((name for state in self.memory.values() if (name := unjoinable(state))), None)
        return None if name is None else f"what {name.lstrip('_')} remembers is of the rows that began together"

    @torch.inference_mode()
    def put(self, where: np.ndarray, other: VerifyLoop) -> None:
        """The live rows of `other`, whose prompts have been fed, in place of the finished ones at `where`.

        They take the numbers of those. Both loops stand between rounds, and the samplers are one.
        """
        rows = self.rows[where]
        assign_rows(self.request.source, rows, other.request.source, other.rows)
        self.text.put(where, other.text)
        self.forward.put(where, other.forward)
        self.recorder.put(self.forward, rows, other.recorder, other.forward)
        self.endings.put(where, other.endings)
        self.ended = self.ended.copy()
        self.ended[where] = False
        for stage, state in self.memory.items():
            self.memory[stage] = put_rows(state, where, other.memory[stage])


def _read(draft: Draft, verdict: Verdict) -> dict[str, np.ndarray]:
    """What the host has to know of a round.

    count: [B] accepted nodes. next: [B] the token behind them. taken: [B, D] tokens of the path, where it can have
    more than node 0. deepest: [B] the deepest node tested, of what is no chain. deviation: [B] of relaxed rules.
    highest: [] of what a drafting model says.
    """
    parts = {"count": verdict.count, "next": verdict.next}
    if verdict.path.shape[1] > 1:
        parts["taken"] = draft.tokens.gather(1, verdict.path)
    if draft.parents is not None or draft.verify is not None:
        parts["deepest"] = torch.where(draft.tested, draft.depth, 0).amax(1)
    if verdict.deviation is not None:
        parts["deviation"] = verdict.deviation
    if draft.highest is not None:
        parts["highest"] = draft.highest
    return to_host(parts)


def _remembered(memory: dict[int, Any], stage: Any) -> Any:
    return memory.get(id(stage))
