"""Curves of quality against cost: a method at several settings of one parameter, and a reference method's curve.

Whole curves are compared, since a stricter or looser setting of the reference may be as good as the method. All
differences are paired: both curves are measured on the same problems, and the bootstrap resamples problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..io.jsonl import Row
from . import metrics
from .metrics import Rows

COSTS = ("nfe", "tokens_fed", "seconds")  # costs of a problem: forwards, computed positions, seconds
LOSS = 0.01  # forwards are compared where the accuracy is this much below that of sequential decoding
_RESAMPLES = 2_000
_ALPHA = 3.0  # exponent of AUP: how fast the weight of a lower accuracy falls
_TOLERANCE = 0.05  # AUP leaves out points that lose more than this against the least parallel one


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One sampler on N problems: its mean score and costs on each, over the seeds."""

    sampler: str
    score: np.ndarray  # [N]
    costs: Mapping[str, np.ndarray]  # each [N]
    generated: np.ndarray  # [N] tokens up to the first end token

    def cost(self, name: str = "nfe") -> float:
        """The mean cost of a problem."""
        return float(self.costs[name].mean())

    @property
    def accuracy(self) -> float:
        return float(self.score.mean())

    @property
    def tokens_per_forward(self) -> float:
        return float(self.generated.sum() / self.costs["nfe"].sum())


def settings(by_sampler: Mapping[str, Rows], names: Sequence[str]) -> list[Setting]:
    """The samplers that decoded every problem on which any sampler was scored, in the order of `names`.

    A row that failed scores 0 and leaves its sampler out: its cost is not known.
    """
    finished = {name: metrics.successful(by_sampler.get(name, ())) for name in names}
    scored = {metrics.problem_key(row) for rows in finished.values() for row in rows if row["score"] is not None}
    problems = sorted(scored)
    complete = []
    for name, rows in finished.items():
        per_problem: dict[metrics.ProblemKey, list[Row]] = {}
        for row in rows:
            per_problem.setdefault(metrics.problem_key(row), []).append(row)
        if not problems or any(problem not in per_problem for problem in problems):
            continue

        def mean(field: str, rows_of: Mapping[metrics.ProblemKey, list[Row]] = per_problem) -> np.ndarray:
            return np.array([np.mean([row[field] or 0 for row in rows_of[problem]]) for problem in problems])

        complete.append(Setting(name, mean("score"), {cost: mean(cost) for cost in COSTS}, mean("generated")))
    return complete


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% percentile interval; None where the curves share no accuracy or cost."""

    value: float | None
    low: float | None = None
    high: float | None = None


def accuracy_gain(setting: Setting, reference: Sequence[Setting], cost: str = "nfe") -> Interval:
    """The accuracy above the reference's curve at the same cost, negative below it.

    The reference's curve is linear between its settings, and vertical between those of equal cost: an accuracy between
    theirs lies on it. Beyond its cheapest and dearest setting there is nothing to compare with, so the gain is None.
    """

    def gain(scores: np.ndarray, costs: np.ndarray) -> np.ndarray:
        low, high = _interpolate(costs[:, 0], costs[:, 1:], scores[:, 1:])
        above: np.ndarray = scores[:, 0] - scores[:, 0].clip(low, high)
        return above

    return _paired([setting, *reference], cost, gain)


def cost_ratio(curve: Sequence[Setting], reference: Sequence[Setting], accuracy: float, cost: str = "nfe") -> Interval:
    """The curve's cost divided by the reference's at an accuracy that both reach; below 1 the curve is cheaper.

    Each cost is the least that reaches `accuracy`: linear between settings, with the best accuracy of all cheaper ones.
    """
    count = len(curve)

    def ratio(scores: np.ndarray, costs: np.ndarray) -> np.ndarray:
        own = _cost_at(accuracy, scores[:, :count], costs[:, :count])
        other = _cost_at(accuracy, scores[:, count:], costs[:, count:])
        return np.where(np.isfinite(other), own / other, np.nan)  # no ratio where the reference does not reach it

    return _paired([*curve, *reference], cost, ratio)


def cost_at(curve: Sequence[Setting], accuracy: float, cost: str = "nfe") -> Interval:
    """The least cost at which the curve reaches `accuracy`."""
    return _paired(curve, cost, lambda scores, costs: _cost_at(accuracy, scores, costs))


def dominated(some: Sequence[Setting], cost: str = "nfe") -> dict[str, str]:
    """For each setting that others beat, the name of the cheapest of the most accurate among them.

    One setting beats another if it costs no more and is no less accurate, and is better in one of the two.
    """
    beaten = {}
    for one in some:
        better = [
            other
            for other in some
            if other.cost(cost) <= one.cost(cost)
            and other.accuracy >= one.accuracy
            and (other.cost(cost) < one.cost(cost) or other.accuracy > one.accuracy)
        ]
        if better:
            beaten[one.sampler] = min(better, key=lambda other: (-other.accuracy, other.cost(cost))).sampler
    return beaten


def area_under_parallelism(curve: Sequence[Setting], best: float) -> float:
    """AUP of d3LLM (arXiv:2601.07568): the area under accuracy against tokens per forward, losses weighted down.

        rho_1 y_1 + sum over i > 1 of (rho_i - rho_(i-1)) (y_i W(y_i) + y_(i-1) W(y_(i-1))) / 2
        W(y) = min(exp(-3 (1 - y / best)), 1)

    rho is in tokens per forward, ascending, and y an accuracy in percent. Settings more than 5 points below that of the
    least parallel one are left out. `best` is the highest accuracy (0..1) of any method on the task.

    >>> one = Setting("a", np.ones(2), {"nfe": np.array([4.0, 4.0])}, np.array([8.0, 8.0]))
    >>> area_under_parallelism([one], 1.0)
    200.0
    """
    points = sorted((setting.tokens_per_forward, setting.accuracy) for setting in curve)
    first = points[0][1]
    near_best = [(rho, 100 * y) for rho, y in points if y >= first - _TOLERANCE]

    def weighted(y: float) -> float:
        return y * min(math.exp(-_ALPHA * (1 - y / (100 * best))), 1.0) if best else 0.0

    area = near_best[0][0] * near_best[0][1]
    for (rho_before, before), (rho, y) in pairwise(near_best):
        area += (rho - rho_before) * (weighted(y) + weighted(before)) / 2
    return area


# --- the paired bootstrap ---


def _paired(some: Sequence[Setting], cost: str, figure: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Interval:
    """`figure` of all problems, and its interval over resampled ones.

    `figure` gets scores and costs [R, S]: the means of R resamples of the problems under S settings. Where it is nan or
    infinite there is none; with more than half of the resamples so there is no interval.
    """
    scores = np.stack([setting.score for setting in some], 1)  # [N, S]
    costs = np.stack([setting.costs[cost] for setting in some], 1)
    with np.errstate(all="ignore"):
        value = float(figure(scores.mean(0)[None], costs.mean(0)[None])[0])
        weights = np.random.default_rng(0).multinomial(len(scores), np.full(len(scores), 1 / len(scores)), _RESAMPLES)
        resampled = figure(weights @ scores / len(scores), weights @ costs / len(scores))
    resampled = resampled[np.isfinite(resampled)]
    if not math.isfinite(value):
        return Interval(None)
    if len(resampled) < _RESAMPLES / 2:
        return Interval(value)
    low, high = np.percentile(resampled, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def _interpolate(at: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[R] the least and the greatest value of the curve through (xs, ys) [R, S] at `at` [R]; nan outside of it."""
    order = np.lexsort((ys, xs), 1)  # among points with equal x, the highest comes last
    xs, ys = np.take_along_axis(xs, order, 1), np.take_along_axis(ys, order, 1)
    line = np.array([np.interp(x, row, values, np.nan, np.nan) for x, row, values in zip(at, xs, ys, strict=True)])
    here = np.isclose(xs, at[:, None], rtol=1e-9, atol=0)
    low, high = np.where(here, ys, np.inf).min(1), np.where(here, ys, -np.inf).max(1)
    any_here = here.any(1)
    return np.where(any_here, low, line), np.where(any_here, high, line)


def _cost_at(accuracy: float, scores: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """[R] the least cost at which the curve through (costs, scores) [R, S] reaches `accuracy`; inf if it never does."""
    order = np.argsort(costs, 1, kind="stable")
    costs = np.take_along_axis(costs, order, 1)
    reached = np.maximum.accumulate(np.take_along_axis(scores, order, 1), 1)
    first = (reached >= accuracy - 1e-12).argmax(1)
    rows = np.arange(len(first))
    before = np.maximum(first - 1, 0)
    rise = reached[rows, first] - reached[rows, before]
    share = np.where(rise > 0, (accuracy - reached[rows, before]) / np.where(rise > 0, rise, 1), 1.0)
    at = costs[rows, before] + share.clip(0, 1) * (costs[rows, first] - costs[rows, before])
    return np.where(reached[:, -1] >= accuracy - 1e-12, at, np.inf)
