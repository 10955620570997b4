"""Chooses each row's number of drafted tokens to maximise the batch's tokens per second; none under high load.

Optimizing Speculative Decoding for Serving Large Language Models Using Goodput, https://arxiv.org/abs/2406.14066

    k = argmax  sum_b (1 - a_b^(k_b + 1)) / (1 - a_b)  /  T(k)
    T = 1 + c max_b k_b + token sum_b (k_b + 1) + context L
    a_b = acceptance of row b so far, counts fading by `decay` a round;  L tokens of context

Where the drafter estimates acceptances itself, in one forward, as DSpark does (https://arxiv.org/abs/2607.05147):

    tokens of row b = 1 + sum over j of s_bj,  s_bj = a_b1 a_b2 .. a_bj,  T = 1 + c + token sum_b (k_b + 1) + context L

All levels are drafted if the counts promise more than no draft; then each row ends where the best choice among the
tokens of all rows known so far takes no more of it. Tokens that are chosen already stay: to drop a token because of
what follows it would change the distribution. For a single row that is the maximum over k.

Costs are relative to an empty forward of the target. With `measured` they are fitted by least squares to the timed
rounds of the request. The number of drafted tokens then depends on measured times, and always on the other rows; this
affects the sampled tokens, but not their distribution.

Deviates from the paper: each row has its own k, chosen jointly. Counts fade while nothing is drafted, so that drafting
is tried again.
Exact: greedy and distribution, with an exact acceptance. Sampled tokens depend on the batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError

from ...host_transfer import download
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Length, RoundResult

Round = tuple[float, float, float, float]  # drafter forwards, positions fed to the target, context, seconds


@dataclass(frozen=True)
class Costs:
    """Time of a round = fixed + draft * drafter forwards + token * positions fed + context * tokens of context."""

    fixed: float
    draft: float
    token: float
    context: float

    @staticmethod
    def fitted(rounds: Sequence[Round]) -> Costs:
        """Least squares over measured rounds; collinear costs are shared, and no cost is negative."""
        table = np.array(rounds, dtype=float)
        features = np.column_stack((np.ones(len(table)), table[:, :3]))
        scale = np.abs(features).max(0)
        scale[scale == 0] = 1
        costs = np.linalg.lstsq(features / scale, table[:, 3], rcond=1e-6)[0] / scale
        return Costs(*costs.clip(min=0).tolist())


def lengths(acceptance: np.ndarray, most: int, costs: Costs, context: float) -> np.ndarray:
    """[B] int64: tokens to draft for each row, at most `most`, that maximise the round's tokens per unit of time.

    Token j of row b adds acceptance[b] ** j expected tokens and one position to feed; the longest row determines the
    number of drafter forwards.
    """
    best, chosen = idle_rate(len(acceptance), costs, context), np.zeros(len(acceptance), dtype=np.int64)
    gains = acceptance[:, None] ** np.arange(1, most + 1)
    for deep in range(1, most + 1):
        rate, counts = prefixes(gains[:, :deep], costs, context, deep)
        if rate > best:
            best, chosen = rate, counts
    return chosen


def prefixes(survival: np.ndarray, costs: Costs, context: float, forwards: int) -> tuple[float, np.ndarray]:
    """The highest tokens per unit of time after this many drafter forwards, and each row's draft length [B] for it.

    `survival` [B, K] is the probability that a row's first tokens are all accepted, which is what each adds. It does
    not rise along a row, so that the best choice of any size is a prefix of all tokens sorted by what they add.
    """
    rows, width = survival.shape
    gain = survival.ravel()
    order = np.argsort(-gain, kind="stable")
    fed = costs.token * np.arange(rows, rows + len(gain) + 1)
    price = costs.fixed + costs.draft * forwards + costs.context * context + fed
    rate = (rows + np.concatenate(([0.0], gain[order].cumsum()))) / np.maximum(price, 1e-12)
    at = int(rate.argmax())
    return float(rate[at]), np.bincount(order[:at] // max(width, 1), minlength=rows)


def idle_rate(rows: int, costs: Costs, context: float) -> float:
    """Tokens per unit of time of a round that drafts nothing."""
    return rows / max(costs.fixed + costs.token * rows + costs.context * context, 1e-12)


_WEIGHT = 2.0  # tested tokens that the prior counts as
_UNIFORM_ROUNDS = 6  # rounds of different lengths before measured costs are used
_RECENT = 64  # rounds that the costs are fitted to


@dataclass
class _Memory:
    tested: np.ndarray  # [B]
    accepted: np.ndarray  # [B]
    survival: np.ndarray  # [B, steps] of this round's tokens, by the drafter's estimates
    costs: Costs | None = None  # costs of this round, if the drafter's estimates end its drafts
    started: float | None = None  # seconds
    rounds: list[Round] = field(default_factory=list)


@register("goodput", exact="greedy", checked="joint")
class Goodput(Length):
    provides = frozenset({Trait.DROPS_LAST, Trait.TIMES_ROUNDS, Trait.OBSERVES_TOKENS})

    c: Annotated[float, "cost of a drafting forward, in target forwards"] = 0.1
    token: Annotated[float, "cost of each position fed to the target, in target forwards"] = 0.005
    context: Annotated[float, "cost of each token of context in any row, in target forwards"] = 0.0
    prior: Annotated[float, "acceptance that is assumed at first"] = 0.7
    decay: Annotated[float, "factor by which counts fade per round"] = 0.95
    measured: Annotated[bool, "fit the costs to measured times"] = False

    def __post_init__(self) -> None:
        self.require("c", "token", "context", least=0)
        for name in ("prior", "decay"):
            if not 0 < getattr(self, name) <= 1:
                raise SpecError(f"goodput: {name} must lie in (0, 1], got {getattr(self, name)}")

    def start(self, context: DecodeContext) -> _Memory:
        rows = len(context.text)
        return _Memory(np.zeros(rows), np.zeros(rows), np.ones((rows, 0)))

    def budget(self, most: int, context: DecodeContext, state: _Memory) -> np.ndarray:
        rows, costs = len(context.text), Costs(1, self.c, self.token, self.context)
        state.survival, state.costs = np.ones((rows, 0)), None
        if self.measured:
            state.started = time.perf_counter()
            if (count := len(state.rounds)) < _UNIFORM_ROUNDS:
                return np.full(rows, (most, 0, (most + 1) // 2)[count % 3])
            costs = Costs.fitted(state.rounds[-_RECENT:])
        acceptance = (_WEIGHT * self.prior + state.accepted) / (_WEIGHT + state.tested)
        total, module = float(context.text.length.sum()), context.request.draft_model
        if not (isinstance(module, DraftModule) and module.estimates_acceptance):
            return lengths(acceptance, most, costs, total)
        state.costs = costs
        promised, _ = prefixes(acceptance[:, None] ** np.arange(1, most + 1), costs, total, 1)
        return np.full(rows, most if promised > idle_rate(rows, costs, total) else 0)

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: _Memory) -> Tensor | None:
        if state.costs is None:
            return None
        before = state.survival[:, -1] if step else np.ones(len(state.survival))
        state.survival = np.column_stack((state.survival, before * download(confidence.double())))
        _, counts = prefixes(state.survival, state.costs, float(context.text.length.sum()), 1)
        return torch.from_numpy(counts <= step)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _Memory) -> None:
        accepted, drafted = outcome.levels()
        state.tested = state.tested * self.decay + np.minimum(accepted + 1, drafted)
        state.accepted = state.accepted * self.decay + accepted
        if state.started is not None:
            seconds, draft = time.perf_counter() - state.started, outcome.draft
            fed = float(draft.sizes.sum())
            state.rounds.append((float(draft.forwards), fed, float(outcome.before.sum()), seconds))
            state.started = None
