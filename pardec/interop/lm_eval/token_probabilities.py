"""The probabilities of given tokens at given positions, in batches of rows of unequal length."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pardec.models import finite
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

Item = TypeVar("Item")
Made = TypeVar("Made")

_LOGITS = 1 << 26  # numbers that the head puts out at once: the logits of long rows would not fit beside a large model
_log = logging.getLogger("lm_eval.pardec")  # lm-eval's handler and level


@dataclass(frozen=True, slots=True)
class Query:
    """One row to run, and what is asked of it."""

    ids: Sequence[int]
    at: Sequence[int]  # absolute positions
    targets: Sequence[int]  # the token whose probability is asked, one a position
    context: int = 0  # leading tokens that guidance hides


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says at the positions of a query, on the CPU."""

    log_prob: Tensor  # [K] float64, of each target, in nats
    best: Tensor  # [K] int64, the likeliest token that may be committed
    score: Tensor  # [K] float64, its log-probability among those


class Batches:
    """Cuts work into batches: of a fixed size, or ("auto") halved whenever memory runs out."""

    def __init__(self, size: int, *, auto: bool = False) -> None:
        self.size, self.auto = size, auto

    def run(self, items: Sequence[Item], work: Callable[[Sequence[Item]], Made]) -> Iterator[tuple[int, Made]]:
        """Yields, batch by batch, how many items it had and what `work` made of them."""
        start = 0
        while start < len(items):
            batch = items[start : start + self.size]
            try:
                made = work(batch)
            except (MemoryError, torch.OutOfMemoryError):  # pardec's OutOfMemory is a MemoryError
                if not self.auto or self.size == 1:
                    raise
                self.size = (min(self.size, len(batch)) + 1) // 2
                _log.warning("out of memory: batches of %d rows from here on", self.size)
                continue
            yield len(batch), made
            start += len(batch)


class TokenProbabilities:
    """Asks a model for probabilities. The head runs on the positions asked, a part of them at a time."""

    def __init__(self, model: LanguageModel, batches: Batches, *, cfg: float | None = None) -> None:
        self.model, self.batches, self.cfg = model, batches, cfg

    def ask(self, queries: Sequence[Query]) -> list[Answer]:
        """One answer a query, in their order; rows of about one length go through a forward together.

        Raises ModelError, naming where they come from, for logits that are not finite.
        """
        finite.demand_head(self.model)
        order = sorted(range(len(queries)), key=lambda i: -len(queries[i].ids))
        made: list[Answer] = []
        for _, answers in self.batches.run([queries[i] for i in order], self._forward):
            made += answers
        found = dict(zip(order, made, strict=True))
        return [found[i] for i in range(len(queries))]

    @torch.inference_mode()
    def _forward(self, queries: Sequence[Query]) -> list[Answer]:
        model, mask = self.model, self.model.decoding_config.mask_id
        tokens = _padded([query.ids for query in queries], model.decoding_config.pad_id)  # [B, L]
        at = _padded([query.at for query in queries], -1)  # [B, K]
        targets = _padded([query.targets for query in queries], 0)  # [B, K]
        lengths = torch.tensor([len(query.ids) for query in queries])
        want = torch.where(at >= 0, model.rows(at), -1)
        if self.cfg is not None:
            assert mask is not None, "guidance hides the context behind masks"
            context = torch.tensor([query.context for query in queries])[:, None]
            hidden_context = torch.where(torch.arange(tokens.shape[1]) < context, mask, tokens)
            tokens = torch.cat([tokens, hidden_context])
            lengths, want = torch.cat([lengths, lengths]), torch.cat([want, want])
        tokens, lengths, want = (tensor.to(model.device) for tensor in (tokens, lengths, want))
        plan = replace(Plan.full(tokens, model.visible(), lengths), want=want, narrow=True)
        hidden = model.forward(plan)
        step = max(1, _LOGITS // (len(want) * model.vocab_size))
        parts = [
            self._read(hidden.logits(rows), wanted.to(model.device))
            for rows, wanted in zip(torch.split(want, step, 1), torch.split(targets, step, 1), strict=True)
        ]
        log_prob, best, score = (torch.cat(part, 1).cpu() for part in zip(*parts, strict=True))
        if not all(bool(score[i, : len(query.at)].isfinite().all()) for i, query in enumerate(queries)):
            found = finite.failure(model, [(plan, None)], cfg=self.cfg)
            raise found or ModelError(f"{model.name} gives logits that are not finite")
        return [
            Answer(log_prob[i, :count].double(), best[i, :count], score[i, :count].double())
            for i, count in enumerate(len(query.at) for query in queries)
        ]

    def _read(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From logits [B, K, V], of both halves with guidance, and targets [B, K]: the fields of an answer, [B, K]."""
        if self.cfg is not None:
            conditional, unconditional = logits.chunk(2)
            logits = unconditional + self.cfg * (conditional - unconditional)
        log_prob = logits.gather(-1, targets[..., None]).squeeze(-1) - logits.logsumexp(-1)
        if (mask := self.model.decoding_config.mask_id) is not None:
            logits = logits.index_fill(-1, torch.tensor([mask], device=logits.device), -torch.inf)
        top, best = logits.max(-1)
        return log_prob, best, top - logits.logsumexp(-1)


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    return pad_sequence([torch.tensor(list(row)) for row in rows], batch_first=True, padding_value=pad)
