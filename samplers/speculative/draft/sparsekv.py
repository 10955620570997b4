"""Drafts with the target itself, which reads a part of its keys and values.

TriForce: Lossless Acceleration of Long Sequence Generation with Hierarchical Speculative Decoding,
https://arxiv.org/abs/2404.11912

    x_i ~ p'(. | text, x_1 .. x_(i-1)),  i = 1 .. k,  p' the target that sees what the reading chooses and the x alone

The reading is a cache of an autoregressive spec: streaming, retrieval, and others. What it chooses is copied to a
compact cache; after every round the verify pass's own keys and values of the committed tokens go there, in place of
those that were made through the reading.

A draft step reads all weights and the budget's keys and values; the verify pass, all of them. It gains where these are
many beside the weights: at long texts.
Exact: greedy and distribution, with an exact acceptance, whatever the reading does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from pardec.models.compact_cache import CompactCache
from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.model import LanguageModel

from ...batching import put_rows, take_rows
from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from ..draft_model import DraftModelState
from ..reading import Reading, Renewal, demand_plain_decoder, reading_of


@register("sparsekv", stage="draft", paper="arXiv:2404.11912", exact="greedy", checked="joint")
@dataclass(frozen=True)
class SparseKV(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (4, 2, 6)}
    _reading: ClassVar[Any]

    read: Annotated[str, 'spec of the reading, quoted: "retrieval:budget=512" or "streaming:window=496"'] = "retrieval"
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 4

    def __post_init__(self) -> None:
        self.require("k", least=1)
        object.__setattr__(self, "_reading", reading_of(self.read, "sparsekv"))  # no field: it follows from the spec

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    @property
    def last_queries(self) -> int:
        return int(self._reading.last_queries)

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The most that a draft step costs: the weights are read either way."""
        return 1.0

    def start(self, context: DecodeContext) -> ReadingState:
        demand_plain_decoder(context.model, "sparsekv")
        return ReadingState(context, self._reading, self.k)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: ReadingState) -> Draft:
        return state.draft(self.k, room, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: ReadingState) -> None:
        state.follow()


class ReadingState(DraftModelState):
    """The target that reads a compact cache."""

    cache: CompactCache

    def __init__(self, context: DecodeContext, reading: Reading, depth: int) -> None:
        longest, reach = int(context.text.limit.max()), context.cache.reach
        nodes = reach - longest + 1
        rows = len(context.text)
        most = reading.most + reading.refresh * (depth + 1) + nodes
        super().__init__(
            context, context.model, CompactCache(context.cache, batch=rows, slots=min(most, reach), reach=reach)
        )
        self.reading = reading
        self.renewal = Renewal(np.full(rows, reading.refresh), np.zeros(rows, dtype=np.int64))

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
