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
            scores = _told(processor, rows)(ids, scores)
        return scores


def _told(processor: Any, rows: Tensor) -> Any:
    """The processor for a batch that consists of these rows of the call, where it knows rows by their number."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(processor, RepetitionPenaltyLogitsProcessor) and isinstance(ignored, Tensor):
        return RepetitionPenaltyLogitsProcessor(processor.penalty, ignored.to(rows.device)[rows])
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed, numbers = processor._prefix_allowed_tokens_fn, rows.tolist()
        return PrefixConstrainedLogitsProcessor(lambda at, ids: allowed(numbers[at], ids), 1)
    return processor


class Stopping:
    """Stopping criteria sorted: what the loop itself sees to, the clock, and what is asked of each row's text."""

    def __init__(self, criteria: Sequence[Any], input_ids: Tensor) -> None:
        self.input_ids = input_ids  # [B, P]
        lengths = [each.max_length for each in criteria if isinstance(each, MaxLengthCriteria)]
        self.most: int | None = min(lengths) - input_ids.shape[1] if lengths else None  # tokens to come
        ends = [each.eos_token_id.flatten().tolist() for each in criteria if isinstance(each, EosTokenCriteria)]
        self.stop_ids = sorted({token for each in ends for token in each if token >= 0})
        self.ends = any(hasattr(each, "eos_token_id") for each in criteria)  # finished rows are filled up
        self.clocks = [each for each in criteria if isinstance(each, MaxTimeCriteria)]
        known = (MaxLengthCriteria, EosTokenCriteria, MaxTimeCriteria)
        self.others = [each for each in criteria if not isinstance(each, known)]

    def late(self) -> bool:
        """Whether the time is up."""
        return any(bool(torch.as_tensor(clock(self.input_ids, None)).any()) for clock in self.clocks)

    def first(self, row: int, made: Sequence[int], known: int) -> int | None:
        """How many of the tokens `made` stand, where a criterion stops the row behind one; `known` were asked about."""
        if not self.others:
            return None
        new = torch.tensor(made, device=self.input_ids.device)
        for count in range(known + 1, len(made) + 1):
            text = torch.cat((self.input_ids[row], new[:count]))[None]
            if any(bool(torch.as_tensor(each(text, None)).any()) for each in self.others):
                return count
        return None
