"""The target that drafts, or verifies an inner draft, through a reading of its own keys and values."""

from __future__ import annotations

import numpy as np
import torch

from pardec.models.caches.compact_cache import CompactCache

from ..batching import put_rows, take_rows
from .contracts import DecodeContext
from .draft_model import DraftModelState
from .reading import QueryReading, Reading


class ReadingState(DraftModelState):
    """The target that reads a compact cache."""

    cache: CompactCache

    def __init__(self, context: DecodeContext, reading: Reading, depth: int) -> None:
        rows, reach = len(context.text), context.cache.reach
        most = reading.most + reading.refresh * (depth + 1) + context.scratch + 1
        super().__init__(
            context, context.model, CompactCache(context.cache, batch=rows, slots=min(most, reach), reach=reach)
        )
        self.reading = reading
        self.renewal = reading.renewal(rows)

    def follow(self) -> None:
        """Takes over the target's K/V of what was committed, after each round."""
        length, renewal = self.context.text.length - 1, self.renewal
        due = self.reading.renew(self.cache, self.context.cache, self.context, renewal)
        self.cache.copy(self.context.cache, np.where(due, length, renewal.copied), length)
        renewal.copied = length

    def keep(self, rows: np.ndarray) -> None:
        super().keep(rows)
        self.renewal = take_rows(self.renewal, rows)
        if len(rows):
            take_rows(self.cache, rows)

    def put(self, where: np.ndarray, other: DraftModelState) -> None:
        super().put(where, other)
        assert isinstance(other, ReadingState), "both are of one sampler"
        self.renewal = put_rows(self.renewal, where, other.renewal)
        self.cache.put(torch.from_numpy(where), other.cache)


class QueryReadingState(DraftModelState):
    """The target that reads its own cache, through what a reading sees of it for each query."""

    def __init__(self, context: DecodeContext, reading: QueryReading, depth: int) -> None:
        self.reading, self.view = reading, reading.view(context.model, context.cache)
        super().__init__(context, context.model, self.view)

    def follow(self) -> None:
        """After each round."""
        self.reading.calibrate(self.view, self.context)

    def _begin(self) -> None:
        self.view.share(self.context.cache)
        super()._begin()

    def keep(self, rows: np.ndarray) -> None:
        super().keep(rows)
        self.view.keep_labels(torch.from_numpy(rows))

    def put(self, where: np.ndarray, other: DraftModelState) -> None:
        super().put(where, other)
        assert isinstance(other, QueryReadingState), "both are of one sampler"
        self.view.put_labels(torch.from_numpy(where), other.view)
