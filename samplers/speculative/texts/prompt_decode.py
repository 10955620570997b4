"""The loop of methods that write several drafts of a prompt in one pass: one row of K/V and one forward per token.

Each forward reads a mixture of what the drafts ended with. Drafts then compete for the k places, as beams do: nothing
is final before the pass ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pardec.models import finite
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers.trace import PROMPT

from ...events import Event, Finished, RowFinished, Started, Step
from ...host_transfer import download, upload
from ...request import Request
from ...trace import Fed, Trace
from ..contracts import Texts


@dataclass(frozen=True, slots=True)
class TextDraft:
    """One text of a prompt: its ids, the prompt's included, and its score."""

    ids: tuple[int, ...]
    score: float = 0.0
    probs: tuple[float, ...] = ()  # the probability of each generated token in its forward
    ended: bool = False


@dataclass(eq=False)
class PromptDecode:
    """One prompt: the drafts that continue, best first, and those that have ended."""

    prompt: tuple[int, ...]
    limit: int
    rows: tuple[int, ...]  # indices in the request
    state: Any
    going: list[TextDraft]
    ended: list[TextDraft] = field(default_factory=list)
    forwards: int = 0

    @property
    def length(self) -> int:
        """The number of tokens of a draft that continues."""
        return len(self.prompt) + self.forwards

    def ranked(self) -> list[TextDraft]:
        """All drafts, best first; those that have ended come before the others."""
        return [*sorted(self.ended, key=lambda draft: -draft.score), *self.going]

    def over(self, k: int) -> bool:
        """Whether its texts are final. Scores never rise, so that ended drafts may be out of reach."""
        if self.length >= self.limit or not self.going:
            return True
        return len(self.ended) >= k and self.going[0].score <= self.ranked()[k - 1].score

    def advance(
        self, texts: Texts, tokens: np.ndarray, logprobs: np.ndarray, probs: np.ndarray, stops: frozenset[int]
    ) -> None:
        """Extends every draft by each of `tokens` [T] and keeps the best."""
        change = texts.scores([draft.ids for draft in self.going], tokens, logprobs, self.state)
        scores = np.array([draft.score for draft in self.going])[:, None] + change
        going: list[TextDraft] = []
        for rank, index in enumerate(np.argsort(-scores, axis=None, kind="stable").tolist()):
            parent, at = self.going[index // len(tokens)], index % len(tokens)
            token, score = int(tokens[at]), float(scores.flat[index])
            ended = token in stops
            draft = TextDraft((*parent.ids, token), score, (*parent.probs, float(probs[at])), ended)
            if not ended:
                going.append(draft)
            elif rank < texts.k:
                self.ended.append(draft)
            if len(going) == texts.k:
                break
        self.going = going
        self.forwards += 1


@torch.inference_mode()
def decode(model: LanguageModel, texts: Texts, request: Request, *, steps: bool = True) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Step` and `RowFinished` events, and at last `Finished`.

    Rows of one prompt share a pass. Without `steps` there are no `Step` events.
    """
    if model.decoding_config.attention != "causal":
        raise ModelError(f"{model.name} is no autoregressive model", "use one, such as tiny-llama")
    finite.demand_head(model)
    texts.admit(request, texts)
    passes = _passes(texts, request)
    finished: dict[int, tuple[PromptDecode, TextDraft]] = {}
    yield _started(model, request)
    live = [each for each in passes if not each.over(texts.k)]
    yield from _leave([each for each in passes if each not in live], request, finished)
    cache = model.new_cache(len(live), max((each.limit for each in live), default=1))
    stops, number, visible = frozenset(request.stop_ids), 0, dict[int, tuple[int, ...]]()
    while live:
        plan = _next(model, texts, live) if number else _prompts(model, live)
        raw = model.run(plan, cache).logits()[:, 0].float()
        if not finite.sound(raw).all():
            error = finite.failure(model, [(plan, cache)])
            raise error or ModelError(f"{model.name} gives logits that are not finite")
        tokens, logprobs = texts.candidates(raw)
        probs = raw.softmax(-1).gather(-1, tokens)
        each_row = zip(live, *(download(part) for part in (tokens, logprobs, probs)), strict=True)
        for each, *row in each_row:
            each.advance(texts, *row, stops)
        if steps:
            yield _step(model, request, live, visible, number)
        number += 1
        over = [each for each in live if each.over(texts.k)]
        if over:
            yield from _leave(over, request, finished)
            cache.keep(torch.tensor([at for at, each in enumerate(live) if each not in over], dtype=torch.int64))
            live = [each for each in live if each not in over]
    yield _finished(model, request, finished)


def _passes(texts: Texts, request: Request) -> list[PromptDecode]:
    """One pass per group of rows with the same prompt and the same maximum length."""
    rows: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for row, (canvas, size) in enumerate(zip(request.canvases, request.prompts, strict=True)):
        rows.setdefault((tuple(canvas[:size].tolist()), len(canvas)), []).append(row)
    states = texts.begin([prompt for prompt, _ in rows], request)
    return [
        PromptDecode(prompt, limit, tuple(each), state, [TextDraft(prompt)])
        for ((prompt, limit), each), state in zip(rows.items(), states, strict=True)
    ]


# --- forwards ---


def _prompts(model: LanguageModel, live: list[PromptDecode]) -> Plan:
    rows = [torch.tensor(each.prompt) for each in live]
    lengths = upload(torch.tensor([len(row) for row in rows]), model.device)
    plan = Plan.full(pad_sequence(rows, batch_first=True).to(model.device), Visible.causal(), lengths)
    return _wanting(plan, lengths[:, None] - 1)


def _wanting(plan: Plan, want: Tensor) -> Plan:
    return Plan(plan.tokens, plan.positions, plan.slots, plan.visible, plan.lengths, want, narrow=True)


def _next(model: LanguageModel, texts: Texts, live: list[PromptDecode]) -> Plan:
    """A forward of one position per pass: the mixture of the last tokens of its drafts."""
    most = max(len(each.going) for each in live)
    last = np.zeros((len(live), most), dtype=np.int64)
    share = np.zeros((len(live), most), dtype=np.float32)
    for at, each in enumerate(live):
        last[at, : len(each.going)] = [draft.ids[-1] for draft in each.going]
        share[at, : len(each.going)] = texts.mixture(np.array([draft.score for draft in each.going]))
    mixed = model.embed_mixture(*(upload(part, model.device) for part in (last, share)))
    lengths = upload(torch.tensor([each.length for each in live]), model.device)
    where = lengths[:, None] - 1
    return Plan(
        tokens=torch.full_like(where, -1),
        positions=where,
        slots=where,
        visible=Visible.causal(),
        lengths=lengths,
        want=torch.zeros_like(where),
        soft=mixed[:, None],
    )


# --- events ---


def _row_drafts(each: PromptDecode, request: Request) -> Iterator[tuple[int, TextDraft]]:
    """The rows of a pass, each with its text draft."""
    ranked = each.ranked()
    for row in each.rows:
        yield row, ranked[min(request.samples[row] if request.samples else 0, len(ranked) - 1)]


def _padded(model: LanguageModel, rows: list[tuple[int, ...]], width: int) -> np.ndarray:
    tokens = np.full((len(rows), width), model.decoding_config.pad_id, dtype=np.int64)
    for at, ids in enumerate(rows):
        tokens[at, : len(ids)] = ids
    return tokens


def _started(model: LanguageModel, request: Request) -> Started:
    prompts, limits = np.array(request.prompts), np.array([len(canvas) for canvas in request.canvases])
    each = zip(request.canvases, request.prompts, strict=True)
    order = np.arange(limits.max())
    tokens = _padded(model, [tuple(canvas[:size].tolist()) for canvas, size in each], int(limits.max()))
    return Started(tokens, (order >= prompts[:, None]) & (order < limits[:, None]), prompts)


def _step(
    model: LanguageModel, request: Request, live: list[PromptDecode], visible: dict[int, tuple[int, ...]], number: int
) -> Step:
    """The event of a step, with the drafts now and, in `visible`, before. Rows may switch drafts: none is settled."""
    every = [(row, draft, each) for each in live for row, draft in _row_drafts(each, request)]
    width = max(len(canvas) for canvas in request.canvases)
    order = np.arange(width)
    ends = np.array([len(draft.ids) for _, draft, _ in every])
    earlier = [visible.get(row, each.prompt) for row, _, each in every]
    tokens, old = (_padded(model, ids, width) for ids in ([draft.ids for _, draft, _ in every], earlier))
    before = order < np.array([len(ids) for ids in earlier])[:, None]
    now = order < ends[:, None]
    visible.update({row: draft.ids for row, draft, _ in every})
    return Step(
        number=number,
        rows=np.array([row for row, _, _ in every]),
        nfe=np.array([each.forwards for _, _, each in every]),
        tokens=tokens,
        open=~now & (order < np.array([each.limit for _, _, each in every])[:, None]),
        committed=now & ~(before & (tokens == old)),
        settled=np.array([len(each.prompt) for _, _, each in every]),
        revised=before & (tokens != old),
    )


def _leave(
    over: list[PromptDecode], request: Request, finished: dict[int, tuple[PromptDecode, TextDraft]]
) -> Iterator[RowFinished]:
    for each in over:
        for row, draft in _row_drafts(each, request):
            finished[row] = each, draft
            yield RowFinished(
                row,
                np.array(draft.ids, dtype=np.int64),
                "stop" if draft.ended else "length",
                each.forwards,
                commit_step=_commit_step(each, draft),
            )


def _commit_step(each: PromptDecode, draft: TextDraft) -> np.ndarray:
    start = len(each.prompt)
    return (np.arange(len(draft.ids)) - start).clip(PROMPT).astype(np.int32)


def _finished(model: LanguageModel, request: Request, finished: dict[int, tuple[PromptDecode, TextDraft]]) -> Finished:
    """The final event. Tokens fed by a pass are counted once, for its first row."""
    ends = [finished[row] for row in range(len(request.canvases))]
    lengths = np.array([len(draft.ids) for _, draft in ends])
    commit_step = np.full((len(ends), lengths.max()), PROMPT, dtype=np.int32)
    commit_score = np.zeros(commit_step.shape, dtype=np.float32)
    fed: list[tuple[Fed, ...]] = []
    for row, (each, draft) in enumerate(ends):
        start = len(each.prompt)
        commit_step[row, : len(draft.ids)] = _commit_step(each, draft)
        commit_score[row, start : len(draft.ids)] = draft.probs
        later = range(start, start + each.forwards - 1)
        fed.append((range(start), *(range(at, at + 1) for at in later)) if each.forwards else ())
    tokens = _padded(model, [draft.ids for _, draft in ends], int(lengths.max()))
    first = [row == each.rows[0] for row, (each, _) in enumerate(ends)]
    return Finished(
        tokens=tokens,
        reasons=tuple("stop" if draft.ended else "length" for _, draft in ends),
        nfe=tuple(each.forwards for each, _ in ends),
        forward_rows=tuple(each.forwards * one for one, (each, _) in zip(first, ends, strict=True)),
        tokens_fed=tuple(sum(map(len, row)) * one for one, row in zip(first, fed, strict=True)),
        trace=Trace(tokens, commit_step, commit_score, lengths, tuple(fed)),
    )
