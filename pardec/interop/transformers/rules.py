"""Runs transformers' logits processors and stopping criteria, which expect lockstep, on rows of different lengths."""

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


class PaddedProcessors:
    """Calls logits processors with the inputs that transformers would pass, including the padding on the left.

    They count tokens from the padded length and may read the padding; those that use row indices get the right ones.
    """

    def __init__(self, processors: Sequence[Any], input_ids: Tensor, real: Tensor) -> None:
        self.processors = list(processors)
        self.input_ids = input_ids  # [B, P]
        self.padding = (~real).sum(1)  # [B]

    def by_row(self, rows: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        """Processes scores [N, V] that follow the unpadded histories `ids` [N, L] of `rows` [N]."""
        padding, out = self.padding.to(rows.device)[rows], scores.clone()
        for count in sorted(set(padding.tolist())):
            same = (padding == count).nonzero()[:, 0]
            before = self.input_ids[rows[same].to(self.input_ids.device), :count].to(ids.device)
            out[same] = self._process(rows[same], torch.cat((before, ids[same]), 1), scores[same])
        return out

    def _process(self, rows: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        for processor in self.processors:
            scores = _with_row(processor, rows)(ids, scores)
        return scores


def _with_row(processor: Any, rows: Tensor) -> Any:
    """The processor for a batch of these rows of the call, for processors that use row indices."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if type(processor) is RepetitionPenaltyLogitsProcessor and isinstance(ignored, Tensor):
        return RepetitionPenaltyLogitsProcessor(processor.penalty, ignored.to(rows.device)[rows])
    if type(processor) is PrefixConstrainedLogitsProcessor:
        function, indices = processor._prefix_allowed_tokens_fn, rows.tolist()
        return PrefixConstrainedLogitsProcessor(lambda at, ids: function(indices[at], ids), 1)
    return processor


class Stopping:
    """Stopping criteria by kind: those that the loop handles itself, time limits, and criteria on the text."""

    def __init__(self, criteria: Sequence[Any], input_ids: Tensor) -> None:
        self.input_ids = input_ids  # [B, P]
        lengths = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
        self.max_new_tokens: int | None = min(lengths) - input_ids.shape[1] if lengths else None  # tokens to come
        ends = [each.eos_token_id.flatten().tolist() for each in criteria if type(each) is EosTokenCriteria]
        self.stop_ids = sorted({token for each in ends for token in each if token >= 0})
        self.ends = any(hasattr(each, "eos_token_id") for each in criteria)  # finished rows are padded
        self.clocks = [each for each in criteria if type(each) is MaxTimeCriteria]
        # Subclasses of these have rules of their own and are called like any other.
        known = (MaxLengthCriteria, EosTokenCriteria, MaxTimeCriteria)
        self.others = [each for each in criteria if type(each) not in known]
        self.text = input_ids  # [B, P + n], up to the last column passed to the others

    def time_is_up(self) -> bool:
        """Whether a time limit has passed."""
        return any(bool(torch.as_tensor(clock(self.input_ids, None)).any()) for clock in self.clocks)

    def stop_rows(self, column: Tensor) -> list[bool]:
        """The rows that a criterion stops after the next tokens, `column` [B].

        Criteria are called as in transformers, with all rows and once per token, so a criterion may use the whole batch
        or keep state.
        """
        self.text = torch.cat((self.text, column[:, None].to(self.text.device)), 1)
        stop = torch.zeros(len(column), dtype=torch.bool, device=self.text.device)
        for each in self.others:
            stop = stop | torch.as_tensor(each(self.text, None), device=stop.device)
        by_row: list[bool] = stop.tolist()
        return by_row
