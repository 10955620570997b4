"""transformers' logits processors and stopping criteria, made for rows in lock-step, for rows at their own pace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)


class Padded:
    """Logits processors that see each row as transformers shows it, its padding on the left included.

    They count tokens from the padded length and may read the padding; who reads the row's number is told it.
    """

    def __init__(self, processors: Sequence[Any], input_ids: Tensor, real: Tensor) -> None:
        self.processors = list(processors)
        self.input_ids = input_ids  # [B, P]
        self.padding = (~real).sum(1)  # [B]

    def by_row(self, rows: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [N, V] behind the unpadded histories `ids` [N, L] of `rows` [N]."""
        padding, out = self.padding.to(rows.device)[rows], scores.clone()
        for count in sorted(set(padding.tolist())):
            at = (padding == count).nonzero()[:, 0]
            before = self.input_ids[rows[at].to(self.input_ids.device), :count].to(ids.device)
            out[at] = self._run(rows[at], torch.cat((before, ids[at]), 1), scores[at])
        return out

    def _run(self, rows: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        for processor in self.processors:
            scores = _with_row(processor, rows)(ids, scores)
        return scores


def _with_row(processor: Any, rows: Tensor) -> Any:
    """The processor for a batch that consists of these rows of the call, where it knows rows by their number."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if type(processor) is RepetitionPenaltyLogitsProcessor and isinstance(ignored, Tensor):
        return RepetitionPenaltyLogitsProcessor(processor.penalty, ignored.to(rows.device)[rows])
    if type(processor) is PrefixConstrainedLogitsProcessor:
        allowed, numbers = processor._prefix_allowed_tokens_fn, rows.tolist()
        return PrefixConstrainedLogitsProcessor(lambda at, ids: allowed(numbers[at], ids), 1)
    return processor


class Stopping:
    """Stopping criteria sorted: what the loop itself sees to, the clock, and what is asked about the text."""

    def __init__(self, criteria: Sequence[Any], input_ids: Tensor) -> None:
        self.input_ids = input_ids  # [B, P]
        lengths = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
        self.most: int | None = min(lengths) - input_ids.shape[1] if lengths else None  # tokens to come
        ends = [each.eos_token_id.flatten().tolist() for each in criteria if type(each) is EosTokenCriteria]
        self.stop_ids = sorted({token for each in ends for token in each if token >= 0})
        self.ends = any(hasattr(each, "eos_token_id") for each in criteria)  # finished rows are filled up
        self.clocks = [each for each in criteria if type(each) is MaxTimeCriteria]
        # One of these with a rule of its own is asked like any other.
        known = (MaxLengthCriteria, EosTokenCriteria, MaxTimeCriteria)
        self.others = [each for each in criteria if type(each) not in known]
        self.text = input_ids  # [B, P + n], as far as the others have been asked

    def late(self) -> bool:
        """Whether the time is up."""
        return any(bool(torch.as_tensor(clock(self.input_ids, None)).any()) for clock in self.clocks)

    def stopped(self, column: Tensor) -> list[bool]:
        """Which rows a criterion stops behind the next token of each, `column` [B].

        Criteria are asked as transformers asks them, about all rows at once and once a token, so one may look at the
        whole batch or remember what it was asked.
        """
        self.text = torch.cat((self.text, column[:, None].to(self.text.device)), 1)
        done = torch.zeros(len(column), dtype=torch.bool, device=self.text.device)
        for each in self.others:
            done = done | torch.as_tensor(each(self.text, None), device=done.device)
        stopped: list[bool] = done.tolist()
        return stopped
