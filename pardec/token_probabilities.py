"""Probabilities of given tokens at given positions, in batches of rows of different lengths."""

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
Output = TypeVar("Output")

_LOGITS = 1 << 26  # most logits computed at once: those of long rows would not fit into memory beside a large model
_log = logging.getLogger("lm_eval.pardec")  # lm-eval's handler and level


@dataclass(frozen=True, slots=True)
class Query:
    """One row to run, with the positions and tokens whose probabilities are queried."""

    ids: Sequence[int]
    at: Sequence[int]  # absolute positions
    targets: Sequence[int]  # the token whose probability is queried, one per position
    context: int = 0  # leading tokens that guidance masks


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's outputs at the positions of a query, on the CPU."""

    log_prob: Tensor  # [K] float64, of each target, in nats
    best: Tensor  # [K] int64, the likeliest token that may be committed
    score: Tensor  # [K] float64, its log-probability among those


class Batches:
    """Splits work into batches of a fixed size, or ("auto") of a size that is halved whenever memory runs out."""

    def __init__(self, size: int, *, auto: bool = False) -> None:
        self.size, self.auto = size, auto

    def run(self, items: Sequence[Item], work: Callable[[Sequence[Item]], Output]) -> Iterator[tuple[int, Output]]:
        """Yields for each batch its number of items and the output of `work`."""
        start = 0
        while start < len(items):
            batch = items[start : start + self.size]
            try:
                output = work(batch)
            except (MemoryError, torch.OutOfMemoryError):  # pardec's OutOfMemory is a MemoryError
                if not self.auto or self.size == 1:
                    raise
                self.size = (min(self.size, len(batch)) + 1) // 2
                _log.warning("out of memory: batches of %d rows from here on", self.size)
                continue
            yield len(batch), output
            start += len(batch)


class TokenProbabilities:
    """Queries a model for probabilities. The head runs on the queried positions only, in chunks."""

    def __init__(self, model: LanguageModel, batches: Batches, *, cfg: float | None = None) -> None:
        self.model, self.batches, self.cfg = model, batches, cfg

    def query(self, queries: Sequence[Query]) -> list[Answer]:
        """One answer per query, in their order; rows of similar length share a forward.

        Raises ModelError, naming where they come from, for logits that are not finite.
        """
        finite.demand_head(self.model)
        order = sorted(range(len(queries)), key=lambda i: -len(queries[i].ids))
        results: list[Answer] = []
        for _, answers in self.batches.run([queries[i] for i in order], self._forward):
            results += answers
        by_index = dict(zip(order, results, strict=True))
        return [by_index[i] for i in range(len(queries))]

    @torch.inference_mode()
    def _forward(self, queries: Sequence[Query]) -> list[Answer]:
        model, mask = self.model, self.model.decoding_config.mask_id
        tokens = _pad([query.ids for query in queries], model.decoding_config.pad_id)  # [B, L]
        at = _pad([query.at for query in queries], -1)  # [B, K]
        targets = _pad([query.targets for query in queries], 0)  # [B, K]
        lengths = torch.tensor([len(query.ids) for query in queries])
        wanted = torch.where(at >= 0, model.rows(at), -1)
        if self.cfg is not None:
            assert mask is not None, "guidance masks the context"
            context = torch.tensor([query.context for query in queries])[:, None]
            hidden_context = torch.where(torch.arange(tokens.shape[1]) < context, mask, tokens)
            tokens = torch.cat([tokens, hidden_context])
            lengths, wanted = torch.cat([lengths, lengths]), torch.cat([wanted, wanted])
        tokens, lengths, wanted = (tensor.to(model.device) for tensor in (tokens, lengths, wanted))
        plan = replace(Plan.full(tokens, model.visible(model.masks(tokens)), lengths), want=wanted, narrow=True)
        hidden = model.forward(plan)
        step = max(1, _LOGITS // (len(wanted) * model.vocab_size))
        parts = [
            self._read(hidden.logits(rows), wanted.to(model.device))
            for rows, wanted in zip(torch.split(wanted, step, 1), torch.split(targets, step, 1), strict=True)
        ]
        log_prob, best, score = (torch.cat(part, 1).cpu() for part in zip(*parts, strict=True))
        if not all(bool(score[i, : len(query.at)].isfinite().all()) for i, query in enumerate(queries)):
            error = finite.failure(model, [(plan, None)], cfg=self.cfg)
            raise error or ModelError(f"{model.name} gives logits that are not finite")
        return [
            Answer(log_prob[i, :count].double(), best[i, :count], score[i, :count].double())
            for i, count in enumerate(len(query.at) for query in queries)
        ]

    def _read(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The fields of an answer, [B, K], from targets [B, K] and logits [B, K, V] (2B rows with guidance)."""
        if self.cfg is not None:
            conditional, unconditional = logits.chunk(2)
            logits = unconditional + self.cfg * (conditional - unconditional)
        log_prob = logits.gather(-1, targets[..., None]).squeeze(-1) - logits.logsumexp(-1)
        if (mask := self.model.decoding_config.mask_id) is not None:
            logits = logits.index_fill(-1, torch.tensor([mask], device=logits.device), -torch.inf)
        top, best = logits.max(-1)
        return log_prob, best, top - logits.logsumexp(-1)


def _pad(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    return pad_sequence([torch.tensor(list(row)) for row in rows], batch_first=True, padding_value=pad)
