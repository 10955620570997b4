"""Optional features of a round of the verify loop: each wraps one step of the round or is called after one.

`VerifyLoop` puts them in place when it is made, and again when rows join. A request without a feature runs none of its
code.

    propose     a cache stage limits the depth of drafts
    predict     the acceptance feeds nodes of its own, and reads states of the target
    distribute  processors, allowed tokens, grammars, temperature and filters
    accept      a relaxed rule commits no token that the request excludes
    end         stop strings
    check       processed logits are finite
    record      log-probabilities
    observe     the drafter, the length controller and the cache stage
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..endings import Endings
from ..logprobs import LogprobRecorder
from .contracts import (
    Acceptance,
    Cache,
    DecodeContext,
    Draft,
    Drafter,
    Length,
    RoundResult,
    SpeculativeSampler,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from .forward import VerifyForward
from .forward_features import ExtendedForward
from .ops.processing import Processing
from .sequences import Sequences

Memory = MutableMapping[int, Any]  # the state of each stage, by the stage's id
Propose = Callable[[DecodeContext, np.ndarray, Uniforms, Any], Draft]
Distribute = Callable[[Tensor, Draft], TargetDistributions]
Predict = Callable[[Draft], tuple[TargetDistributions, Tensor | None]]
Accept = Callable[[Draft, TargetDistributions, Uniforms, Any], Verdict]
Observe = Callable[[RoundResult, DecodeContext, Any], None]
End = Callable[[np.ndarray, np.ndarray], np.ndarray]  # tokens [B, D], counts [B] -> [B] counts, -1: the row continues
Check = Callable[[TargetDistributions, Tensor, Tensor], Tensor]  # nodes [N] of rows [N] -> [N], finite if logits are
Record = Callable[[TargetDistributions, Tensor, Tensor, Tensor, np.ndarray, np.ndarray], None]


def within_cache(propose: Propose, stage: Cache, memory: Memory) -> Propose:
    """`propose` with drafts no deeper than the cache stage allows."""

    def limited(context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        depth = stage.max_depth(context, remaining, memory.get(id(stage)))
        return propose(context, depth, uniforms, state)

    return limited


def limits_depth(stage: Cache) -> bool:
    """Whether a cache stage needs `within_cache`."""
    return _overrides(stage.max_depth, Cache.max_depth)


def processed(processing: Processing) -> Distribute:
    """A function that turns raw logits into processed distributions."""
    greedy = not processing.request.temperature
    return lambda raw, draft: TargetDistributions(raw, processing.of_target(raw, draft), greedy)


def read_by_acceptance(
    forward: VerifyForward, distribute: Distribute, accept: Acceptance, context: DecodeContext, memory: Memory
) -> Predict:
    """Predictions for an acceptance that adds nodes to the draft or reads states."""

    def predict(draft: Draft) -> tuple[TargetDistributions, Tensor | None]:
        width = draft.width
        extended = accept.extend(draft, context, memory.get(id(accept)))
        raw, values = forward.verify(extended)
        states, judged = forward.split(values) if isinstance(forward, ExtendedForward) else (None, None)
        judged = None if judged is None else judged[:, :width]
        if extended is draft:
            return replace(distribute(raw, draft), states=judged), states
        own = replace(distribute(raw[:, :width], draft), states=judged, extended=raw)
        return own, None if states is None else states[:, :width]

    return predict


def reads_more(accept: Acceptance, forward: VerifyForward) -> bool:
    """Whether an acceptance needs `read_by_acceptance`."""
    judged = isinstance(forward, ExtendedForward) and forward.judged is not None
    return judged or _overrides(accept.extend, Acceptance.extend)


def without_excluded(accept: Accept, *, by_position: bool) -> Accept:
    """`accept` without tokens that the request's constraints and filters exclude, for relaxed rules.

    A path ends before the first such token, and the token after the path then comes from the target. Where constraints
    are `by_position`, not by the tokens before, a preaccepted token stays: they and the filters allowed it in the round
    that accepted it, and the filters of a distribution that has seen more are no reason to draw it again.
    """

    def allowed(draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Any) -> Verdict:
        verdict = accept(draft, distributions, uniforms, state)
        logits, path = distributions.logits, verdict.path
        rows = torch.arange(len(path), device=path.device)
        inside = torch.arange(path.shape[1], device=path.device) <= verdict.count[:, None]
        path = path.masked_fill(~inside, 0)
        tokens = draft.ids.gather(1, path)
        stands = logits[rows[:, None], path[:, :-1], tokens[:, 1:]] > -torch.inf
        if by_position and draft.preaccepted is not None:
            stands |= draft.preaccepted.gather(1, path)[:, 1:]
        count = (stands & inside[:, 1:]).cumprod(1).sum(1)
        last = path.gather(1, count[:, None])[:, 0]
        stays = (count == verdict.count) & (logits[rows, last, verdict.next] > -torch.inf)
        if path.device.type == "cpu" and bool(stays.all()):  # on a GPU this check would synchronize
            return verdict
        own = distributions.pick[rows, last]
        if not distributions.greedy:
            own = uniforms.draw(logits[rows, last].softmax(-1), "next after an excluded one")
        return replace(verdict, count=count, next=torch.where(stays, verdict.next, own))

    return allowed


def stop_strings(endings: Endings, text: Sequences) -> End:
    """Ends rows by `Request.stops`."""

    def end(tokens: np.ndarray, counts: np.ndarray) -> np.ndarray:
        rows = zip(text.host, text.prompt, text.length, tokens, counts, strict=True)
        final = [np.concatenate((row[start:end], new[:count])) for row, start, end, new, count in rows]
        stops = endings.find(final)
        return np.where(stops >= 0, stops - (text.length - text.prompt), -1)

    return end


def highest_processed(distributions: TargetDistributions, row: Tensor, node: Tensor) -> Tensor:
    """[N]: the highest processed logit after each committed token's parent."""
    return distributions.logits[row, node].amax(-1)


def log_probabilities(logprobs: LogprobRecorder, text: Sequences) -> Record:
    """Records the log-probabilities of committed tokens, before they are committed."""

    def record(
        distributions: TargetDistributions,
        row: Tensor,
        node: Tensor,
        token: Tensor,
        rows: np.ndarray,
        columns: np.ndarray,
    ) -> None:
        logprobs.add(text.rows[rows], text.length[rows] + columns, token, distributions.raw[row, node])

    return record


def observers(sampler: SpeculativeSampler) -> tuple[tuple[int, Observe], ...]:
    """The stages that observe a round after its commit, each by id."""
    found: list[tuple[int, Observe]] = []
    drafter, length, cache = sampler.draft, sampler.length, sampler.cache
    if _overrides(drafter.observe, Drafter.observe):
        found.append((id(drafter), drafter.observe))
    if length is not None and _overrides(length.observe, Length.observe):
        found.append((id(length), length.observe))
    if cache is not None and _overrides(cache.settle, Cache.settle):
        settle = cache.settle
        found.append((id(cache), lambda outcome, context, state: settle(context, state)))
    return tuple(found)


def _overrides(method: Any, base: Any) -> bool:
    """Whether a bound `method` overrides that of the base class."""
    return getattr(method, "__func__", None) is not base
