"""Curves of quality against cost, and the same as plain values for tables, files and the report.

A curve is a method at several settings of one parameter; it is compared whole with a reference method's curve, since a
stricter or looser setting of the reference may be as good as the method. All differences are paired: both curves are
measured on the same problems, and the bootstrap resamples problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..io.jsonl import Row
from . import metrics
from .metrics import Rows

if TYPE_CHECKING:
    from .run import Run

Figures = dict[str, Any]


def curve_table(run: Run) -> list[Figures]:
    """The curves of each task of a run that swept its samplers; empty for any other run.

    Of each task:
        accuracy: the accuracy at which costs are compared, 1 point below that of sequential decoding.
        sequential, oracle: their accuracy and forwards per problem; None where they were not decoded.
        curves: of each curve its name, parameter and reference, `aup`; for each cost the cost at that accuracy (`at`)
            and its ratio to the reference's (`ratio`), with intervals; and its `points`, cheapest first: accuracy with
            interval, costs, tokens per forward, the setting that dominates it (`dominated_by`), and how far its
            accuracy lies above the reference's curve at equal forwards (`gain`).
    """
    swept: Sequence[Figures] = run.config.get("curves") or ()
    return [_of_task(run, task["name"], swept) for task in run.config["tasks"]] if swept else []


def _of_task(run: Run, task: str, swept: Sequence[Figures]) -> Figures:
    by_sampler: dict[str, list[Row]] = {}
    for row in run.rows:
        if row["task"] == task:
            by_sampler.setdefault(row["sampler"], []).append(row)
    known = {one.sampler: one for one in settings(by_sampler, [entry["sampler"] for entry in run.config["samplers"]])}
    lines = {curve["name"]: [known[name] for name in curve["samplers"] if name in known] for curve in swept}
    on_curves = list({one.sampler: one for line in lines.values() for one in line}.values())
    role = {name: _role(run.config["samplers"], name, known) for name in ("baseline", "floor")}
    best = max((one.accuracy for one in on_curves), default=0.0)
    exact = role["baseline"]
    accuracy = (best if exact is None else exact.accuracy) - LOSS
    beaten = dominated(on_curves)
    return {
        "task": task,
        "problems": len(on_curves[0].score) if on_curves else 0,
        "accuracy": accuracy,
        "sequential": None if exact is None else _single(exact),
        "oracle": None if role["floor"] is None else _single(role["floor"]),
        "curves": [
            _curve(curve, lines[curve["name"]], lines.get(curve["reference"] or ""), accuracy, best, beaten)
            for curve in swept
        ],
    }


def _role(entries: Sequence[Mapping[str, Any]], role: str, known: Mapping[str, Setting]) -> Setting | None:
    """The reference that most entries have in a role (`baseline` or `floor`): the reference of the first entry."""
    return next((known[entry[role]] for entry in entries if entry.get(role) in known), None)


def _single(setting: Setting) -> Figures:
    return {"accuracy": setting.accuracy, **{cost: setting.cost(cost) for cost in COSTS}}


def _curve(
    curve: Mapping[str, Any],
    line: Sequence[Setting],
    reference: Sequence[Setting] | None,
    accuracy: float,
    best: float,
    beaten: Mapping[str, str],
) -> Figures:
    at = {cost: asdict(cost_at(line, accuracy, cost)) for cost in COSTS} if line else None
    ratio = (
        {cost: asdict(cost_ratio(line, reference, accuracy, cost)) for cost in COSTS} if line and reference else None
    )
    return {
        "name": curve["name"],
        "parameter": curve["parameter"],
        "reference": curve["reference"],
        "aup": area_under_parallelism(line, best) if line else None,
        "at": at,
        "ratio": ratio,
        "points": [_point(one, reference, beaten) for one in sorted(line, key=lambda one: one.cost())],
    }


def _point(setting: Setting, reference: Sequence[Setting] | None, beaten: Mapping[str, str]) -> Figures:
    scores = setting.score.tolist()
    plain = set(scores) <= {0.0, 1.0}
    low, high = metrics.wilson(setting.accuracy, len(scores)) if plain else metrics.bootstrap(scores)
    return {
        "sampler": setting.sampler,
        **_single(setting),
        "accuracy_low": low,
        "accuracy_high": high,
        "tokens_per_forward": setting.tokens_per_forward,
        "dominated_by": beaten.get(setting.sampler),
        "gain": asdict(accuracy_gain(setting, reference)) if reference else None,
    }


# --- as text ---


def title(task: Mapping[str, Any]) -> str:
    """The heading of a task's curves."""
    exact, oracle = task["sequential"], task["oracle"]
    text = f"curves of {task['task']}, {task['problems']} problems"
    if exact is not None:
        text += f"; sequential {100 * exact['accuracy']:.1f}% in {exact['nfe']:.1f} forwards"
    return text if oracle is None else f"{text}; oracle {oracle['nfe']:.1f} forwards"


def cells(task: Mapping[str, Any], mark: str = "`") -> list[list[str]]:
    """The short table of a task's curves: a line of heads, then one per curve."""
    lines = []
    for curve in task["curves"]:
        ratio = curve["ratio"] or {}
        lines.append([
            f"{mark}{curve['name']}{mark}",
            curve["parameter"] or "",
            "" if curve["aup"] is None else f"{curve['aup']:.0f}",
            interval((curve["at"] or {}).get("nfe"), 1),
            *(interval(ratio.get(cost)) for cost in COSTS),
            _off(curve["points"]),
            _count(curve["points"], "dominated_by"),
        ])  # fmt: skip
    return [list(legend(task)), *lines]


def legend(task: Mapping[str, Any]) -> dict[str, str]:
    """The meanings of the columns of `cells`, by heading."""
    level = f"{100 * task['accuracy']:.1f}%"
    return {
        "curve": "the sampler as written; threshold and fixed are always included",
        "swept": "the parameter that varies between the settings",
        "AUP": "area under accuracy (percent) against tokens per forward, losses weighted down (arXiv:2601.07568)",
        f"forwards at {level}": "forwards per problem at which the curve reaches this accuracy (1 point below "
        "sequential decoding); in brackets the 95% interval of a paired bootstrap over problems",
        "to reference": "forwards at this accuracy, divided by those of the reference curve; below 1 it needs fewer",
        "fed": "positions fed, divided by the reference's, at the same accuracy",
        "seconds": "seconds, divided by the reference's, at the same accuracy",
        "off": "number of settings with an accuracy above (+) or below (-) the reference's curve at equal "
        "forwards, beyond the 95% interval, of those within its range",
        "dominated": "number of settings that another one beats: no worse in accuracy and forwards, and better in one",
    }


def interval(figure: Mapping[str, float | None] | None, digits: int = 2) -> str:
    """A figure with its interval in brackets; empty if there is none."""
    if figure is None or figure["value"] is None:
        return ""
    bounds = "" if figure["low"] is None else f" ({figure['low']:.{digits}f}..{figure['high']:.{digits}f})"
    return f"{figure['value']:.{digits}f}{bounds}"


def _off(points: Sequence[Mapping[str, Any]]) -> str:
    gains = [point["gain"] for point in points if point["gain"] and point["gain"]["low"] is not None]
    above, below = sum(gain["low"] > 0 for gain in gains), sum(gain["high"] < 0 for gain in gains)
    return f"+{above} -{below} of {len(gains)}" if gains else ""


def _count(points: Sequence[Mapping[str, Any]], field: str) -> str:
    return f"{sum(point[field] is not None for point in points)} of {len(points)}"


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
