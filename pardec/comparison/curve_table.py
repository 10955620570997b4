"""The curves of a run as plain values, for tables, files and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..io.jsonl import Row
from . import curves, metrics
from .curves import COSTS, LOSS, Setting

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
    known = {
        one.sampler: one for one in curves.settings(by_sampler, [entry["sampler"] for entry in run.config["samplers"]])
    }
    lines = {curve["name"]: [known[name] for name in curve["samplers"] if name in known] for curve in swept}
    on_curves = list({one.sampler: one for line in lines.values() for one in line}.values())
    role = {name: _role(run.config["samplers"], name, known) for name in ("baseline", "floor")}
    best = max((one.accuracy for one in on_curves), default=0.0)
    exact = role["baseline"]
    accuracy = (best if exact is None else exact.accuracy) - LOSS
    beaten = curves.dominated(on_curves)
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
    at = {cost: asdict(curves.cost_at(line, accuracy, cost)) for cost in COSTS} if line else None
    ratio = (
        {cost: asdict(curves.cost_ratio(line, reference, accuracy, cost)) for cost in COSTS}
        if line and reference
        else None
    )
    return {
        "name": curve["name"],
        "parameter": curve["parameter"],
        "reference": curve["reference"],
        "aup": curves.area_under_parallelism(line, best) if line else None,
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
        "gain": asdict(curves.accuracy_gain(setting, reference)) if reference else None,
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
