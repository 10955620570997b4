"""The data for the replay and the plot of a report, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...views import replay
from .columns import COLUMNS, Row

if TYPE_CHECKING:
    from ..run import Run

COSTS = ("nfe", "nfe_to_end", "tokens_per_forward", "tokens_per_second")
QUALITIES = ("accuracy", "lenient", "agreement")
_LONG = {
    "nfe": "Forwards per problem (NFE)",
    "nfe_to_end": "Forwards to the end token",
    "tokens_per_forward": "Tokens per forward",
    "tokens_per_second": "Tokens per second",
    "lenient": "Lenient accuracy",
    "agreement": "Agreement with sequential",
}


def prompts(run: Run) -> list[dict[str, Any]]:
    """The replays: for each problem with saved traces, the decode of every sampler, references last."""
    tasks = list(dict.fromkeys(row["task"] for row in run.rows))
    order = sorted(run.rows, key=lambda row: (tasks.index(row["task"]), row["index"], row["reference"]))
    by_problem: dict[tuple[str, str], dict[str, Any]] = {}
    for row in order:
        result = run.traces.get(row["key"])
        if result is None or result.images:
            continue
        key = row["task"], row["problem"]
        if key not in by_problem:
            label = f"{row['task']} {row['index'] + 1}"
            by_problem[key] = {"label": label, "prompt": replay.prompt(result, 0), "runs": []}
        name = f"{row['sampler']} (reference)" if row["reference"] else row["sampler"]
        by_problem[key]["runs"].append({**replay.run(result, 0, name), "score": row["score"]})
    return list(by_problem.values())


def plot(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Points and axes of quality against cost, overall and per task; None if nothing was scored."""
    points = [
        {
            "number": number,
            "name": row["sampler"],
            "exact": row["exact"] != "relaxed",
            "failed": row["failed"],
            "all": figures,
            "tasks": {task: _figures(task_row) for task, task_row in row["by_task"].items()},
        }
        for number, row in enumerate(rows, 1)
        if "nfe" in (figures := _figures(row)) and not figures.keys().isdisjoint(QUALITIES)
    ]
    if not points:
        return None
    return {"samplers": points, "costs": _axes(COSTS, rows), "qualities": _axes(QUALITIES, rows)}


def _figures(row: Row) -> dict[str, Any]:
    keys = (f"{key}{end}" for key in (*COSTS, *QUALITIES) for end in ("", "_low", "_high"))
    return {key: row[key] for key in keys if row.get(key) is not None}


def _axes(keys: Sequence[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The axes of the plot: title of a figure, which direction is better, and whether it is a share."""
    known = {column.key: column for column in COLUMNS}
    return [
        {"key": key, "title": _LONG.get(key, known[key].title), "better": known[key].better, "share": key in QUALITIES}
        for key in keys
        if known[key].worth_showing(rows)
    ]
