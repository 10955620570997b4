"""Stops once a rejection among the drafted tokens is likely, by the acceptance rate of tokens of equal confidence.

SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths, https://arxiv.org/abs/2405.19715

    stop after token i  iff  1 - a_1 a_2 .. a_i > h
    a_j = (prior m + accepted) / (prior + tried)  of the bucket of max q_j, m its middle; counts fade by `decay` a round
    with `cost` c:  h = 1 - c r / a

One more token costs c and is gained with a probability of a_1 .. a_i a, a being the mean acceptance of tokens so far;
tokens are gained at the rate r, per unit of cost, in the rounds so far. So a draft ends where another token promises
less than the average unit of cost. With the best rate for r that is the best threshold; r approaches it. Where a <= c
nothing is drafted: no round then gains more than the token that costs 1.

Deviates from the paper: no trained head; acceptance is counted while decoding, for each row. Tokens after the first
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

from ...host_transfer import download
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Length, RoundResult

_FIRST = 1.0  # rounds without a draft that the rate of tokens per cost begins with


@dataclass
class _Counts:
    cost: float | None  # cost of a drafting forward, in forwards of the target
    tested: np.ndarray  # [B, buckets]
    accepted: np.ndarray  # [B, buckets]
    bucket: np.ndarray  # [B, steps] of this round's tokens
    whole: np.ndarray  # [B] probability that all of this round's tokens are accepted
    gained: np.ndarray  # [B] tokens gained in all rounds, with decay
    spent: np.ndarray  # [B] cost of these rounds, with decay


@register("calibrated", exact="greedy", checked="joint")
class Calibrated(Length):
    provides = frozenset({Trait.OBSERVES_TOKENS})

    h: Annotated[float, "probability of a rejection at which to stop"] = 0.7
    buckets: Annotated[int, "buckets of equal width for the highest drafting probability"] = 32
    prior: Annotated[float, "weight of a bucket's initial acceptance rate (its middle), in tokens"] = 2.0
    decay: Annotated[float, "factor by which counts fade per round"] = 0.99
    cost: Annotated[
        str | None, "cost of a drafting forward in target forwards, or drafter: its own estimate; replaces h"
    ] = None

    def __post_init__(self) -> None:
        if self.cost not in (None, "drafter") and not 0 < self._cost_value < np.inf:
            raise SpecError(f"calibrated: cost must be drafter or a number above 0, got {self.cost!r}")
        for name, value in (("h", self.h), ("decay", self.decay)):
            if not 0 < value <= 1:
                raise SpecError(f"calibrated: {name} must lie in (0, 1], got {value}")
        self.require("buckets", least=1)
        if not self.prior > 0:
            raise SpecError(f"calibrated: prior must be above 0, got {self.prior}", hint="leave prior out")

    @property
    def conflicts(self) -> Reasons:
        each = "{me}: cost is that of one forward per drafted token, and {other} drafts all in one"
        return {} if self.cost is None else {Trait.ONE_FORWARD_DRAFTS: Why(each, "leave cost out, or use goodput")}

    @property
    def _cost_value(self) -> float:
        try:
            return float(self.cost or "nan")
        except ValueError:
            return float("nan")

    def start(self, context: DecodeContext) -> _Counts:
        rows = len(context.text)
        empty, one = np.zeros((rows, self.buckets)), np.ones(rows)
        buckets = np.zeros((rows, 0), dtype=np.int64)
        return _Counts(self._cost(context), empty, empty.copy(), buckets, one, _FIRST * one, _FIRST * one)

    def _cost(self, context: DecodeContext) -> float | None:
        if self.cost is None or self.cost != "drafter":
            return None if self.cost is None else self._cost_value
        drafter = context.sampler.draft
        ratio = drafter.cost_ratio(context.model, context.request.draft_model)
        if ratio is None:
            raise SpecError(
                f"calibrated: cost=drafter, and {drafter.registered[0]} cannot estimate its cost",
                hint="write the cost of a drafting forward, such as cost=0.1",
            )
        return ratio

    def budget(self, most: int, context: DecodeContext, state: _Counts) -> np.ndarray:
        rows = len(context.text)
        state.bucket, state.whole = np.zeros((rows, 0), dtype=np.int64), np.ones(rows)
        if state.cost is None:
            return np.full(rows, most)
        return np.where(self._mean(state) <= state.cost, 0, most)

    def threshold(self, state: _Counts) -> np.ndarray:
        """[B] the probability of a rejection above which a row's draft ends."""
        if state.cost is None:
            return np.full(len(state.whole), self.h)
        h: np.ndarray = 1 - state.cost * state.gained / state.spent / self._mean(state)
        return h

    def _mean(self, state: _Counts) -> np.ndarray:
        """[B] the acceptance probability of a token; 1 at first, so that drafting is tried."""
        mean: np.ndarray = (self.prior + state.accepted.sum(1)) / (self.prior + state.tested.sum(1))
        return mean

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: _Counts) -> Tensor:
        bucket = (download(confidence) * self.buckets).astype(np.int64).clip(0, self.buckets - 1)
        state.bucket = np.column_stack((state.bucket, bucket))
        state.whole = state.whole * self.acceptance(state, bucket)
        return torch.from_numpy(1 - state.whole > self.threshold(state))

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
        if state.cost is not None:
            others = outcome.draft.ignores_length_controller
            own = np.ones(len(drafted), dtype=bool) if others is None else ~others
            spent = 1 + state.cost * drafted
            state.gained = np.where(own, state.gained * self.decay + outcome.gained, state.gained)
            state.spent = np.where(own, state.spent * self.decay + spent, state.spent)
