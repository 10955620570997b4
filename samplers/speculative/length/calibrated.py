"""Stops once a rejection among the drafted tokens is likely enough, by the acceptance of tokens of equal confidence.

SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths, https://arxiv.org/abs/2405.19715

    stop behind token i  iff  1 - a_1 a_2 .. a_i > h
    a_j = (prior m + accepted) / (prior + tried)  of the bucket of max q_j, m its middle; counts fade by `decay` a round

Deviates from the paper: no trained head; acceptance is counted while decoding, for each row. Tokens behind the first
rejection are not counted. On a tree whole levels are counted.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...registry import register
from ..contracts import DecodeContext, Length, RoundResult


@dataclass
class _Counts:
    tested: np.ndarray  # [B, buckets]
    accepted: np.ndarray  # [B, buckets]
    bucket: np.ndarray  # [B, steps] of this round's tokens
    whole: np.ndarray  # [B] probability that all of this round's tokens are accepted


@register("calibrated", stage="length", paper="arXiv:2405.19715", exact="greedy", checked="joint")
@dataclass(frozen=True)
class Calibrated(Length):
    h: Annotated[float, "probability of a rejection at which to stop"] = 0.7
    buckets: Annotated[int, "of equal width, over max q"] = 32
    prior: Annotated[float, "tokens that the middle of a bucket counts as"] = 2.0
    decay: Annotated[float, "factor of a count for each round"] = 0.99

    def __post_init__(self) -> None:
        for name, value in (("h", self.h), ("decay", self.decay)):
            if not 0 < value <= 1:
                raise SpecError(f"calibrated: {name} must lie in (0, 1], got {value}")
        if self.buckets < 1 or not self.prior > 0:
            raise SpecError(f"calibrated: buckets and prior must be above 0, got {self.buckets} and {self.prior}")

    def start(self, context: DecodeContext) -> _Counts:
        rows = len(context.text)
        empty = np.zeros((rows, self.buckets))
        return _Counts(empty, empty.copy(), np.zeros((rows, 0), dtype=np.int64), np.ones(rows))

    def budget(self, most: int, context: DecodeContext, state: _Counts) -> np.ndarray:
        rows = len(context.text)
        state.bucket, state.whole = np.zeros((rows, 0), dtype=np.int64), np.ones(rows)
        return np.full(rows, most)

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: _Counts) -> Tensor:
        bucket = (confidence.cpu().numpy() * self.buckets).astype(np.int64).clip(0, self.buckets - 1)
        state.bucket = np.column_stack((state.bucket, bucket))
        state.whole = state.whole * self.acceptance(state, bucket)
        return torch.from_numpy(1 - state.whole > self.h)

    def acceptance(self, state: _Counts, bucket: np.ndarray) -> np.ndarray:
        """[B] the acceptance probability of a token of each row's `bucket` [B]."""
        row = np.arange(len(bucket))
        middle = (bucket + 0.5) / self.buckets
        rate: np.ndarray = (self.prior * middle + state.accepted[row, bucket]) / (
            self.prior + state.tested[row, bucket]
        )
        return rate

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _Counts) -> None:
        accepted, drafted = outcome.levels()
        step = np.arange(state.bucket.shape[1])
        known = (step < drafted[:, None]) & (step <= accepted[:, None])
        row, column = np.nonzero(known)
        state.tested, state.accepted = state.tested * self.decay, state.accepted * self.decay
        np.add.at(state.tested, (row, state.bucket[row, column]), 1)
        np.add.at(state.accepted, (row, state.bucket[row, column]), column < accepted[row])
