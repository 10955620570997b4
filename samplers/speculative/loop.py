"""The verify loop: autoregressive models, several tokens a forward, every row at its own pace.

One round: the drafter proposes tokens, one forward computes the target's distributions behind them (processors,
temperature, filters), the acceptance decides, the tokens are committed, and drafter and length controller observe the
result. Between rounds the cache contains all of a row's committed tokens but the last. The first round feeds the prompt
and commits the first token.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.model import LanguageModel

from ..batching import scatter_rows, take_rows, unbatchable
from ..conditioning import conditioned_model
from ..endings import Endings
from ..events import Accepted, Event, Finished, RowFinished, Started
from ..host_transfer import to_host
from ..logprobs import LogprobRecorder
from ..ops.confidence import probability_of
from ..request import Request
from ..rng import assign_rows
from ..traits import Trait
from . import compatibility
from . import prompt_decode as one_pass
from .contracts import (
    DecodeContext,
    Draft,
    RoundResult,
    SpeculativeSampler,
    TargetDistributions,
    Verdict,
    without_excluded,
)
from .forward import VerifyForward, shared_length
from .ops.processing import Processing
from .recorder import TraceRecorder
from .sequences import Sequences
from .uniforms import RoundUniforms


def decode(
    model: LanguageModel, sampler: SpeculativeSampler, request: Request, *, steps: bool = True
) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Accepted` and `RowFinished` events, and at last `Finished`.

    Without `steps` there are no `Accepted` events. A sampler of several texts a pass has a loop of its own.
    """
    if sampler.texts is not None:
        compatibility.check(sampler, model, request)
        yield from one_pass.decode(model, sampler.texts, request, steps=steps)
        return
    loop = VerifyLoop(model, sampler, request)
    try:
        yield loop.started()
        yield from loop.retire()  # rows without room for a token
        while len(loop.text):
            before = loop.text.length.copy()
            loop.round()
            if steps:
                yield loop.accepted_event(before)
            yield from loop.retire()
        yield loop.finished()
    finally:
        loop.close()


class VerifyLoop:
    """The state of one request."""

    def __init__(self, model: LanguageModel, sampler: SpeculativeSampler, request: Request) -> None:
        if model.decoding_config.attention != "causal":
            raise ModelError(f"{model.name} is no autoregressive model")
        if sampler.texts is not None:
            raise SpecError(f"{sampler.spec} decodes in a loop of its own, not round by round", "choose a drafter here")
        finite.demand_head(model)
        compatibility.check(sampler, model, request)
        if request.conditions:
            model = conditioned_model(model, request, request.prefix)
        self.model, self.sampler, self.request = model, sampler, request
        prompts = [canvas[:size] for canvas, size in zip(request.canvases, request.prompts, strict=True)]
        self.text = Sequences(
            prompts,
            [len(canvas) for canvas in request.canvases],
            pad_id=model.decoding_config.pad_id,
            device=model.device,
        )
        self.reads_prompt = Trait.READS_PROMPT in sampler.draft.provides
        nodes = sampler.width(model)
        nodes += sampler.draft.most_queries(nodes, request)
        states = sampler.draft.target_states(request) or sampler.draft.target_taps(model)
        # A drafter that reads logits of the whole prompt needs them in one forward.
        begins = states is not None or not self.reads_prompt
        stage = sampler.cache
        shares = stage is None or Trait.SHARES_PROMPTS in stage.provides
        shared = shared_length(model, request, self.text, begins=begins) if shares else 0
        queries = max(each.last_queries for each in sampler.stages)
        judged = sampler.accept.target_states(request)
        self.forward = VerifyForward(
            model, self.text, nodes, states, shared=shared, stage=stage, queries=queries, judged=judged
        )
        self.processing = Processing(request, self.text, sampler.logits)
        self.memory: dict[int, Any] = {}
        self.summary: dict[str, np.ndarray] = {}  # the round's verdict, on the host
        self.state = partial(_state_of, self.memory)  # a stage's state for this request
        processing, cache = self.processing, self.forward.cache
        drafted = processing.drafted, processing.allowed, processing.reads_ids
        self.context = DecodeContext(
            model, request, self.text, *drafted, cache, sampler, self.state, self.forward.last_queries
        )
        self.stops = np.array(request.stop_ids, dtype=np.int64)
        self.endings = Endings(request.stops, len(self.text))
        self.ended = np.zeros(len(self.text), dtype=bool)  # a live row ends with its newest token
        self.logprobs = LogprobRecorder.of(request, self.text, self.text.host.shape[1], model.device)
        self.recorder = TraceRecorder(self.text, self.processing.allowed.forced, self.logprobs)

    @torch.inference_mode()
    def round(self) -> None:
        """One forward for every live row, and the commit."""
        text, sampler = self.text, self.sampler
        uniforms = RoundUniforms(self.request.source, text.rows, text.nfe.copy(), text.device)
        first, more = not self.forward.fed, dict[str, Tensor | None]()
        if first:
            draft, raw, states = self._begin()
        else:
            room, stage = text.room - 1, sampler.cache
            if stage is not None:
                room = stage.room(self.context, room, self.state(stage))
            draft = sampler.draft.propose(self.context, room, uniforms, self.state(sampler.draft))
            raw, states, more = self._verify(draft)
        distributions = TargetDistributions(raw, self.processing(raw, draft), not self.request.temperature, **more)
        verdict = sampler.accept.accept(draft, distributions, uniforms, self.state(sampler.accept))
        if sampler.exact == "relaxed":
            verdict = without_excluded(draft, distributions, verdict, uniforms)
        self.forward.keep_path(draft, verdict)
        text.count_forward()
        before = text.length.copy()
        self.summary = _summary(draft, verdict)
        if not np.isfinite(self.summary.get("highest", 0.0)):
            raise self.state(sampler.draft).failure()
        gained = self._commit(draft, distributions, verdict)
        if first:
            self.forward.store_prompts()
        self.recorder.add(text.rows, draft, self.summary)
        outcome = RoundResult(draft, verdict, distributions, before, gained, states)
        sampler.draft.observe(outcome, self.context, self.state(sampler.draft))
        if sampler.length is not None:
            sampler.length.observe(outcome, self.context, self.state(sampler.length))
        if sampler.cache is not None:
            sampler.cache.settle(self.context, self.state(sampler.cache))

    def _begin(self) -> tuple[Draft, Tensor, Tensor | None]:
        """The forward over the prompts, before which the stages' states are made."""
        last: list[Tensor] = []
        order: list[np.ndarray] = []
        for stage in self.sampler.stages:
            self.memory[id(stage)] = stage.start(self.context)
        drafter = self.sampler.draft
        for rows, hidden, whole in self.forward.prompt(narrow=not self.reads_prompt):
            last.append(hidden.logits())
            order.append(rows)
            if self.reads_prompt:
                drafter.read_prompt(rows, whole, self.context, self.state(drafter))
        self.recorder.reused[self.rows] = self.forward.reuse.length
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(self.text.device)
        return Draft.none(self.text), torch.cat(last)[back], None

    def _verify(self, draft: Draft) -> tuple[Tensor, Tensor | None, dict[str, Tensor | None]]:
        """The draft's forward: raw logits, the drafter's states, and what else the acceptance is to have."""
        accept, width = self.sampler.accept, draft.width
        extended = accept.extend(draft, self.context, self.state(accept))
        raw, values = self.forward.verify(extended)
        states, judged = self.forward.split(values)
        more = {"states": None if judged is None else judged[:, :width]}
        if extended is draft:
            return raw, states, more
        return raw[:, :width], None if states is None else states[:, :width], more | {"extended": raw}

    def _commit(self, draft: Draft, distributions: TargetDistributions, verdict: Verdict) -> np.ndarray:
        """Appends the accepted path and the next token, cut at an end token and at the length limit; [B] counts."""
        path, count, text = verdict.path, self.summary["count"], self.text
        tokens, width = self.summary["next"][:, None], path.shape[1]
        if width > 1:
            path_tokens = self.summary["path_tokens"]
            drafted = np.concatenate((path_tokens[:, 1:], path_tokens[:, :1]), 1)
            tokens = np.where(np.arange(width) == count[:, None], tokens, drafted)
        limited = np.minimum(count + 1, text.room)
        ends = (tokens[:, :, None] == self.stops).any(2) & (np.arange(width) < limited[:, None])
        self.ended = ends.any(1)
        counts: np.ndarray = np.where(self.ended, ends.argmax(1) + 1, limited)
        if self.endings:
            rows = zip(text.host, text.prompt, text.length, tokens, counts, strict=True)
            final = [np.concatenate((row[start:end], new[:count])) for row, start, end, new, count in rows]
            stops = self.endings.find(final)
            counts = np.where(stops >= 0, stops - (text.length - text.prompt), counts)
            self.ended |= stops >= 0
        text.commit(tokens, counts, self._scores(draft, distributions, path, tokens, counts))
        return counts

    def _scores(
        self, draft: Draft, distributions: TargetDistributions, path: Tensor, tokens: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """[B, D] float32: the probability that the model gave each committed token; 0 behind counts[b].

        Records the log-probabilities of those tokens, where they were asked for.
        Raises the error that names the cause if a committed token's logits are not finite.
        """
        row, column = np.nonzero(np.arange(tokens.shape[1]) < counts[:, None])
        device = path.device
        where, column_index, token = (torch.from_numpy(each).to(device) for each in (row, column, tokens[row, column]))
        node = torch.zeros_like(where) if path.shape[1] == 1 else path[where, column_index]
        flat = where * distributions.raw.shape[1] + node
        parts = {"score": probability_of(distributions.raw, flat, token)}
        if distributions.logits is not distributions.raw:
            parts["highest"] = distributions.logits[where, node].amax(-1)
        summary = to_host(parts)
        if not all(np.isfinite(each).all() for each in summary.values()):
            raise self._failure(draft, distributions, where, node)
        scores = np.zeros(tokens.shape, dtype=np.float32)
        scores[row, column] = summary["score"]
        if self.logprobs is not None:
            raw = distributions.raw[where, node]
            self.logprobs.add(self.text.rows[row], self.text.length[row] + column, token, raw)
        return scores

    def _failure(self, draft: Draft, distributions: TargetDistributions, row: Tensor, node: Tensor) -> PardecError:
        """The error for logits that are not finite behind some of these nodes [N] of live rows [N]."""
        error = None
        if not finite.sound(distributions.raw[row, node]).all():
            error = finite.failure(self.model, self.forward.runs, cfg=self.request.cfg)
        else:
            error = self.processing.failure(distributions.raw, draft, row, node)
        return error or ModelError(f"{self.model.name} gives logits that are not finite")

    # --- events ---

    def started(self) -> Started:
        """The rows before the first forward."""
        text = self.text
        return Started(text.host.copy(), self._open(text.length), text.prompt.copy())

    def accepted_event(self, before: np.ndarray) -> Accepted:
        """The last round; its arrays are copies."""
        text = self.text
        open_now, open_before = self._open(text.length), self._open(before)
        return Accepted(
            number=len(self.forward.fed) - 1,
            rows=text.rows,
            nfe=text.nfe.copy(),
            tokens=text.host.copy(),
            open=open_now,
            committed=open_before & ~open_now,
            settled=text.length.copy(),
            gained=text.length - before,
        )

    def _open(self, length: np.ndarray) -> np.ndarray:
        """[n, L] bool: the positions that are not committed yet."""
        positions = np.arange(self.text.host.shape[1])
        open_now: np.ndarray = (positions >= length[:, None]) & (positions < self.text.limit[:, None])
        return open_now

    # --- rows that end ---

    def retire(self) -> Iterator[RowFinished]:
        """Reports and removes finished rows."""
        over = self.finished_rows()
        if not over.any():
            return
        yield from self.leave(over)
        self.keep(np.flatnonzero(~over))

    @property
    def rows(self) -> np.ndarray:
        """[B] the index of each live row in the request."""
        return self.text.rows

    def finished_rows(self) -> np.ndarray:
        """[B] bool: the live rows that are finished."""
        result: np.ndarray = self.ended | (self.text.room == 0)
        return result

    def leave(self, over: np.ndarray) -> Iterator[RowFinished]:
        """Reports the finished rows, whose K/V later requests may go on from."""
        for at in np.flatnonzero(over):
            self.forward.reuse.leave(int(at), self.text.row(int(at))[:-1])
            yield self.recorder.finish_row(int(at), "stop" if self.ended[at] else "length")

    def keep(self, keep: np.ndarray) -> None:
        """The text, the cache and every state keep these live rows only."""
        self.text.keep(keep)
        self.forward.keep(keep)
        self.processing.keep(keep)
        self.ended = self.ended[keep]
        self.endings.keep(keep)
        self.memory.update({stage: take_rows(state, keep) for stage, state in self.memory.items()})

    def finished(self, row: int | None = None) -> Finished:
        """The result of all rows, or of this one."""
        return self.recorder.finished(self.forward, row)

    def close(self) -> None:
        """Gives up what is leased, and the states, which refer to the context as it does to them."""
        self.forward.reuse.close()
        self.memory.clear()

    # --- rows that enter ---

    def batching_obstacle(self) -> str | None:
        """Why rows cannot join the running batch; None if they can."""
        if any(hasattr(processor, "by_row") for processor in self.request.processors):
            return "a logits processor counts the rows of one request"
        name = next((name for state in self.memory.values() if (name := unbatchable(state))), None)
        return None if name is None else f"what {name.lstrip('_')} remembers is of the rows that began together"

    @torch.inference_mode()
    def put(self, where: np.ndarray, other: VerifyLoop) -> None:
        """Replaces the finished rows at `where` by the live rows of `other`, whose prompts have been fed.

        They take over the indices of those in the request. Both loops are between rounds and have the same sampler.
        """
        rows = self.rows[where]
        assign_rows(self.request.source, rows, other.request.source, other.rows)
        self.text.put(where, other.text)
        self.forward.put(where, other.forward)
        self.processing.put(where, other.processing)
        self.recorder.put(self.forward, rows, other.recorder, other.forward)
        if self.logprobs is not None and other.logprobs is not None:
            self.logprobs.put(rows, other.logprobs)
        self.endings.put(where, other.endings)
        self.ended = self.ended.copy()
        self.ended[where] = False
        for stage, state in self.memory.items():
            self.memory[stage] = scatter_rows(state, where, other.memory[stage])


def _summary(draft: Draft, verdict: Verdict) -> dict[str, np.ndarray]:
    """What the host needs of a round.

    count: [B] accepted nodes. next: [B] the token behind them. taken: [B, D] tokens of the path, where it can have
    more than node 0. deepest: [B] the greatest depth of a tested node, unless a chain. deviation: [B] of relaxed rules.
    highest: [] of a drafting model's logits.
    """
    parts = {"count": verdict.count, "next": verdict.next}
    if verdict.path.shape[1] > 1:
        parts["path_tokens"] = draft.tokens.gather(1, verdict.path)
    if draft.parents is not None or draft.verify is not None:
        parts["deepest"] = torch.where(draft.tested, draft.depth, 0).amax(1)
    if verdict.deviation is not None:
        parts["deviation"] = verdict.deviation
    if draft.highest is not None:
        parts["highest"] = draft.highest
    return to_host(parts)


def _state_of(memory: dict[int, Any], stage: Any) -> Any:
    return memory.get(id(stage))
