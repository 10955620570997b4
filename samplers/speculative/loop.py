"""The verify loop: autoregressive models, several tokens per forward, every row at its own pace.

Fast Inference from Transformers via Speculative Decoding, https://arxiv.org/abs/2211.17192

    draft   x_1 .. x_k            the drafter proposes tokens after the text, a chain or a tree
    verify  p(. | text, x_1 .. x_i), i = 0 .. k   one forward of the target
    accept  the first tokens that the acceptance lets pass, and the target's own token after them
    commit  them, up to an end token or the row's limit

Between rounds the cache contains all of a row's committed tokens but the last. The first round feeds the prompt and
commits the first token. What a request or a stage adds to this round stands in `features`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.model import LanguageModel

from .. import pace
from ..batching import scatter_rows, take_rows, unbatchable
from ..endings import Endings
from ..events import Accepted, Event, Finished, RowFinished, Started
from ..host_transfer import to_host, upload
from ..logprobs import LogprobRecorder
from ..ops.confidence import probability_of
from ..request import Request, conditioned_model
from ..rng import assign_rows
from ..traits import Trait
from . import compatibility, features
from .captured_round import CapturedRound, NotKept, obstacle
from .contracts import (
    Acceptance,
    DecodeContext,
    Draft,
    Drafter,
    RoundResult,
    RoundUniforms,
    SpeculativeSampler,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from .forward import VerifyForward
from .forward_features import ExtendedForward, forward_of
from .ops.processing import Processing
from .recorder import TraceRecorder
from .sequences import Sequences
from .texts import prompt_decode


def decode(
    model: LanguageModel, sampler: SpeculativeSampler, request: Request, *, steps: bool = True
) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Accepted` and `RowFinished` events, and at last `Finished`.

    Without `steps` there are no `Accepted` events. A sampler of several texts a pass has a loop of its own.
    """
    if sampler.texts is not None:
        compatibility.check(sampler, model, request)
        yield from prompt_decode.decode(model, sampler.texts, request, steps=steps)
        return
    loop = VerifyLoop(model, sampler, request)
    try:
        yield loop.started()
        yield from loop.retire()  # rows without room for a token
        while len(loop.text.rows):
            before = loop.text.length.copy()
            loop.round()
            if steps:
                yield loop.accepted_event(before)
            yield from loop.retire()
        yield loop.finished()
    finally:
        loop.close()


class VerifyLoop:
    """The verify loop of one request."""

    def __init__(self, model: LanguageModel, sampler: SpeculativeSampler, request: Request) -> None:
        if model.decoding_config.attention != "causal":
            raise ModelError(f"{model.name} is no autoregressive model")
        if sampler.texts is not None:
            raise SpecError(f"{sampler.spec} has its own loop and cannot run in the verify loop", "use a drafter")
        finite.demand_head(model)
        compatibility.check(sampler, model, request)
        if request.conditions:
            model = conditioned_model(model, request, request.prefix)
        self.model, self.sampler, self.request = model, sampler, request
        prompts = [canvas[:size] for canvas, size in zip(request.canvases, request.prompts, strict=True)]
        self.reads_prompt = Trait.READS_PROMPT in sampler.draft.provides
        limits, pad_id = [len(canvas) for canvas in request.canvases], model.decoding_config.pad_id
        self.text = Sequences(prompts, limits, pad_id=pad_id, device=model.device)
        self.forward = forward_of(model, self.text, sampler, request)
        self.processing = Processing(request, self.text, sampler.logits)
        self.memory: dict[int, Any] = {}  # each stage's state for this request, by the stage's id
        self.state = partial(_state_of, self.memory)
        self.context = DecodeContext(
            model,
            request,
            self.text,
            self.processing.drafted,
            self.processing.of_target,
            self.processing.allowed,
            self.processing.reads_ids,
            self.forward.cache,
            sampler,
            self.state,
            self.forward.last_queries if isinstance(self.forward, ExtendedForward) else tuple,
        )
        self.stops = np.array(request.stop_ids, dtype=np.int64)
        self.endings = Endings(request.stops, len(self.text))
        self.ended = np.zeros(len(self.text), dtype=bool)  # a live row ends with its newest token
        self.summary: dict[str, np.ndarray] = {}  # the round's verdict, on the host
        self.on_host = model.device.type == "cpu"
        self.to_host = _on_host if self.on_host else to_host
        self.logprobs = LogprobRecorder.of(request, self.text, self.text.host.shape[1], model.device)
        self.costs = pace.RoundCosts(pace.stack_of(model), pace.clock_of(model, sampler.draft, *sampler.draft.held))
        self.recorder = TraceRecorder(self.text, self.processing.allowed.forced, self.logprobs)
        self.captured: CapturedRound | None = None
        self._compose()

    # --- the round ---

    @torch.inference_mode()
    def round(self) -> None:
        """Runs one round: a draft, a forward for every live row, and the commit."""
        if not self.forward.fed:
            self._begin()
            return
        text, drafter, started = self.text, self.sampler.draft, self.costs.clock()
        uniforms = RoundUniforms(self.request.source, text.rows, text.nfe.copy(), text.device)
        remaining = text.limit - text.length
        draft = self.propose(self.context, remaining - 1, uniforms, self.memory.get(id(drafter)))
        outcome = None if self.captured is None else self.captured.run(draft)
        if outcome is None:
            distributions, states = self.predict(draft)
            outcome = self._decide(draft, distributions, uniforms, states)
        self._observe(outcome)
        drafted = draft.width > 1 or draft.forwards > 0 or draft.queries is not None
        self.costs.add(drafted, int(draft.base.max()), outcome.gained, self.costs.clock() - started)

    def _begin(self) -> None:
        """Runs the first round: makes the stages' states and feeds the prompts."""
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
        if self.forward.reuse is not None:
            self.recorder.reused[self.rows] = self.forward.reuse.length
        back = upload(np.argsort(np.concatenate(order)), self.text.device)
        text, draft = self.text, Draft.none(self.text)
        uniforms = RoundUniforms(self.request.source, text.rows, text.nfe.copy(), text.device)
        outcome = self._decide(draft, self.distribute(torch.cat(last)[back], draft), uniforms, None)
        self.forward.store_prompts()
        self._observe(outcome)

    def _decide(
        self, draft: Draft, distributions: TargetDistributions, uniforms: RoundUniforms, states: Tensor | None
    ) -> RoundResult:
        """Accepts a path, moves its K/V directly after the committed ones, and commits."""
        text, accept = self.text, self.sampler.accept
        verdict = self.accept(draft, distributions, uniforms, self.memory.get(id(accept)))
        self.forward.keep_path(draft, verdict)
        text.nfe += 1
        before = text.length.copy()
        parts = _summary(draft, verdict)
        if not self.on_host:  # else a second transfer would follow, of the committed tokens' scores alone
            parts |= self._scores_of_path(distributions, verdict, parts.get("path_tokens"))
            if isinstance(depths := self.forward.fed[-1].depths, Tensor):
                parts["depths"] = depths
            drafter = self.sampler.draft
            outcome = RoundResult(draft, verdict, distributions, before, np.zeros_like(before), states)
            parts |= drafter.to_observe(outcome, self.memory.get(id(drafter)))
        self.summary = self.to_host(parts)
        if "depths" in parts:
            self.forward.fed[-1].depths = self.summary["depths"]
        gained = self.commit(draft, distributions, verdict)
        return RoundResult(draft, verdict, distributions, before, gained, states, self.summary)

    def commit(
        self, draft: Draft, distributions: TargetDistributions, verdict: Verdict, *, written: bool = False
    ) -> np.ndarray:
        """Appends the accepted path and the next token, cut at an end token and at the length limit; [B] counts.

        `written`: a graph has written them to the text's tensor.
        """
        if draft.highest is not None and not np.isfinite(self.summary["highest"]):
            raise self.state(self.sampler.draft).failure()
        path, count, text = verdict.path, self.summary["count"], self.text
        tokens, width = self.summary["next"][:, None], path.shape[1]
        if width > 1:
            path_tokens = self.summary["path_tokens"]
            drafted = np.concatenate((path_tokens[:, 1:], path_tokens[:, :1]), 1)
            tokens = np.where(np.arange(width) == count[:, None], tokens, drafted)
        limited = np.minimum(count + 1, text.limit - text.length)
        ends = (tokens[:, :, None] == self.stops).any(2) & (np.arange(width) < limited[:, None])
        self.ended = ends.any(1)
        counts: np.ndarray = np.where(self.ended, ends.argmax(1) + 1, limited)
        for end in self.ends:
            stops = end(tokens, counts)
            counts, self.ended = np.where(stops >= 0, stops, counts), self.ended | (stops >= 0)
        fresh = (np.arange(width) < counts[:, None]).nonzero()
        scores = self._scores(draft, distributions, path, tokens, fresh)
        text.commit(tokens, counts, scores, fresh, written=written)
        return counts

    def _scores(
        self,
        draft: Draft,
        distributions: TargetDistributions,
        path: Tensor,
        tokens: np.ndarray,
        fresh: tuple[np.ndarray, ...],
    ) -> np.ndarray:
        """[B, D] float32: the model's probability of each committed token; 0 where no token is committed.

        `fresh` are the rows and the columns of `tokens` that are. Raises the error that names the cause if a committed
        token's logits are not finite.
        """
        row, column = fresh
        known = "score" in self.summary
        if self.records or (self.checks and not known):
            where, token = upload(row, path.device), upload(tokens[fresh], path.device)
            node = torch.zeros_like(where) if path.shape[1] == 1 else path[where, upload(column, path.device)]
        if known:
            names = ("score", *map(str, range(len(self.checks))))
            on_host = {name: self.summary[name][fresh] for name in names}
        else:  # on a CPU
            on_host = {"score": distributions.score(row, path.numpy()[fresh], tokens[fresh])}
            for number, check in enumerate(self.checks):
                on_host[str(number)] = check(distributions, where, node).numpy()
        for values in on_host.values():
            if not np.isfinite(values).all():
                if isinstance(distributions, NotKept):
                    distributions, _ = self.predict(draft)
                where = upload(row, path.device)
                raise self._failure(draft, distributions, where, path[where, upload(column, path.device)])
        scores = np.zeros(tokens.shape, dtype=np.float32)
        scores[fresh] = on_host["score"]
        for record in self.records:
            record(distributions, where, node, token, row, column)
        return scores

    def _scores_of_path(
        self, distributions: TargetDistributions, verdict: Verdict, path_tokens: Tensor | None
    ) -> dict[str, Tensor]:
        """What `_scores` reads, [B, D] each, computed on the device for every node of the path.

        The host decides later which tokens are committed.
        """
        path, raw, tokens = verdict.path, distributions.raw, verdict.next[:, None]
        if path_tokens is not None:
            order = torch.arange(path.shape[1], device=path.device)
            tokens = torch.where(order == verdict.count[:, None], tokens, path_tokens.roll(-1, 1).clamp(min=0))
        where = torch.arange(len(path), device=path.device)[:, None].expand_as(path).flatten()
        node = path.flatten()
        parts = {"score": probability_of(raw, where * raw.shape[1] + node, tokens.flatten())}
        for number, check in enumerate(self.checks):
            parts[str(number)] = check(distributions, where, node)
        return {name: values.view(path.shape) for name, values in parts.items()}

    def _observe(self, outcome: RoundResult) -> None:
        """Records a round and calls the stages that observe it."""
        draft, rows, recorder = outcome.draft, self.text.rows, self.recorder
        if recorder.forced_before is None:
            recorder.rounds.append((rows, draft.sizes, draft.forwards, self.summary))
        else:
            recorder.add_beside_forced(rows, draft, self.summary)
        for stage, observe in self.observers:
            observe(outcome, self.context, self.memory.get(stage))

    def _failure(self, draft: Draft, distributions: TargetDistributions, row: Tensor, node: Tensor) -> PardecError:
        """The error for logits that are not finite after some of these nodes [N] of live rows [N]."""
        error = None
        if not finite.sound(distributions.raw[row, node]).all():
            error = finite.failure(self.model, self.forward.last_runs(), cfg=self.request.cfg)
        else:
            error = self.processing.failure(distributions.raw, draft, row, node)
        return error or ModelError(f"{self.model.name} gives logits that are not finite")

    # --- features ---

    def _compose(self) -> None:
        """Wraps the steps of a round in this request's features; without features they are the stages' methods."""
        sampler, memory, processing = self.sampler, self.memory, self.processing
        self.propose: features.Propose = partial(_propose, sampler.draft)
        if sampler.cache is not None and features.limits_depth(sampler.cache):
            self.propose = features.within_cache(self.propose, sampler.cache, memory)
        self.distribute: features.Distribute = _unprocessed if self.request.temperature else _unprocessed_greedy
        if not processing.unchanged:
            self.distribute = features.processed(processing)
        self.predict: features.Predict = partial(_predict, self.forward, self.distribute)
        if features.reads_more(sampler.accept, self.forward):
            self.predict = features.read_by_acceptance(
                self.forward, self.distribute, sampler.accept, self.context, memory
            )
        self.accept: features.Accept = partial(_accept, sampler.accept)
        if sampler.exact == "relaxed":
            by_position = not (self.request.reads_history or any(self.request.grammars))
            self.accept = features.without_excluded(self.accept, by_position=by_position)
        self.ends = (features.stop_strings(self.endings, self.text),) if self.endings else ()
        self.checks = () if processing.unchanged else (features.highest_processed,)
        self.records = () if self.logprobs is None else (features.log_probabilities(self.logprobs, self.text),)
        self.observers = features.observers(sampler)
        if self.captured is None:
            self.captured = CapturedRound.of(self)
        else:
            self.captured.obstacle = obstacle(self)

    # --- events ---

    def started(self) -> Started:
        """The rows before the first forward."""
        text = self.text
        positions = np.arange(text.host.shape[1])
        still_open = (positions >= text.length[:, None]) & (positions < text.limit[:, None])
        return Started(text.host.copy(), still_open, text.prompt.copy())

    def accepted_event(self, before: np.ndarray) -> Accepted:
        """The last round; its arrays are copies."""
        text = self.text
        positions = np.arange(text.host.shape[1])
        after, within = positions >= text.length[:, None], positions < text.limit[:, None]
        return Accepted(
            number=len(self.forward.fed) - 1,
            rows=text.rows,
            nfe=text.nfe.copy(),
            tokens=text.host.copy(),
            open=after & within,
            committed=(positions >= before[:, None]) & within & ~after,
            settled=text.length.copy(),
            gained=text.length - before,
        )

    # --- rows that end ---

    def retire(self) -> Iterator[RowFinished]:
        """Reports and removes finished rows."""
        over = self.finished_rows()
        if not over.any():
            return
        yield from self.leave(over)
        if len(rest := np.flatnonzero(~over)):
            self.keep(rest)
        else:
            self.text.rows = rest  # the request is complete: no state is read again

    @property
    def rows(self) -> np.ndarray:
        """[B] the index of each live row in the request."""
        return self.text.rows

    def finished_rows(self) -> np.ndarray:
        """[B] bool: the live rows that are finished."""
        result: np.ndarray = self.ended | (self.text.length == self.text.limit)
        return result

    def leave(self, over: np.ndarray) -> Iterator[RowFinished]:
        """Yields the events of finished rows; stores their K/V, and what the drafter keeps, for later requests."""
        if self.forward.fed:  # else the stages have no state yet
            self.sampler.draft.finish(np.flatnonzero(over), self.context, self.state(self.sampler.draft))
        for at in np.flatnonzero(over):
            if self.forward.reuse is not None:
                self.forward.reuse.leave(int(at), self.text.row(int(at))[:-1])
            yield self.recorder.finish_row(int(at), "stop" if self.ended[at] else "length")

    def keep(self, keep: np.ndarray) -> None:
        """Keeps only these live rows in the text, the cache and every state."""
        self.text.keep(keep)
        self.forward.keep(keep)
        self.processing.keep(keep)
        self.ended = self.ended[keep]
        self.endings.keep(keep)
        self.memory.update({stage: take_rows(state, keep) for stage, state in self.memory.items()})

    def finished(self, row: int | None = None) -> Finished:
        """The result of all rows, or of this one."""
        return self.recorder.finished(self.forward, row, self.costs)

    def close(self) -> None:
        """Returns the leases of the prefix cache and drops the states, which refer to the context and it to them."""
        if self.forward.reuse is not None:
            self.forward.reuse.close()
        if self.captured is not None:
            self.captured.close()
            self.captured = None
        self.memory.clear()

    # --- rows that enter ---

    def batching_obstacle(self) -> str | None:
        """The reason why rows cannot join the running batch; None if they can."""
        if any(hasattr(processor, "by_row") for processor in self.request.processors):
            return "a logits processor indexes the rows of one request"
        name = next((name for state in self.memory.values() if (name := unbatchable(state))), None)
        return None if name is None else f"the state {name.lstrip('_')} is only for rows that begin together"

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
        self._compose()


def _summary(draft: Draft, verdict: Verdict) -> dict[str, Tensor]:
    """The results of a round that the host needs.

    count: [B] accepted nodes. next: [B] the token after them. taken: [B, D] tokens of the path, where it can have
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
    return parts


def _on_host(parts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """`to_host` for tensors that are there already."""
    return {name: part.numpy() for name, part in parts.items()}


def _propose(drafter: Drafter, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
    return drafter.propose(context, remaining, uniforms, state)


def _accept(
    acceptance: Acceptance, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Any
) -> Verdict:
    return acceptance.accept(draft, distributions, uniforms, state)


def _predict(
    forward: VerifyForward, distribute: features.Distribute, draft: Draft
) -> tuple[TargetDistributions, Tensor | None]:
    """The target's distributions after every node, and the states for the drafter."""
    raw, states = forward.verify(draft)
    return distribute(raw, draft), states


def _unprocessed(raw: Tensor, draft: Draft) -> TargetDistributions:
    return TargetDistributions(raw, raw, greedy=False)


def _unprocessed_greedy(raw: Tensor, draft: Draft) -> TargetDistributions:
    return TargetDistributions(raw, raw, greedy=True)


def _state_of(memory: dict[int, Any], stage: Any) -> Any:
    return memory.get(id(stage))
