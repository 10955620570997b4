"""Describes what a comparison would do, before anything is loaded or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..requests.preflight import check_folder
from ..tasks import Task
from . import sources, units
from .entries import SamplerLike
from .plan import Grid, Loading, loadable, plan
from .run import Folder

if TYPE_CHECKING:
    from ..api import Model

_LOADING = ("device", "dtype", "quantize", "packed", "activations")
_ELSE = ("prompts", "scorer", "chat", "cost_ratio", "out", "resume", "retry_failed", "executor", "workers", "progress")


def preview(
    model: Model | str | Path,
    task: str | Task | Sequence[str | Task] | None = None,
    samplers: SamplerLike | Sequence[SamplerLike] = (),
    **arguments: Any,
) -> dict[str, Any]:
    """The plan of `compare` for these arguments, as plain values; nothing is decoded, loaded or written.

    Raises:
        SpecError: for what `compare` would reject before loading weights.

    >>> made = preview("tiny-dream", "arithmetic", ["threshold+eos"], limit=2, references=False)
    >>> made["rows"], made["samplers"][0]["sampler"]
    ({'of_samplers': 2, 'of_references': 0, 'finished': 0, 'to_do': 2}, 'threshold+eos')
    """
    named = {field.name for kind in (Grid, Loading) for field in fields(kind)} | {*_ELSE, "warm_up"}
    grid = Grid(**{field.name: arguments[field.name] for field in fields(Grid) if field.name in arguments})
    loading = Loading(**{field.name: arguments[field.name] for field in fields(Loading) if field.name in arguments})
    sources.refuse_unnamed(arguments.get("scorer"), arguments.get("executor", "local"))
    grid_plan = plan(
        str(model) if isinstance(model, Path) else model,
        [samplers] if isinstance(samplers, SamplerLike) else samplers,
        sources.tasks(task, arguments.get("prompts"), arguments.get("scorer")),
        {name: value for name, value in arguments.items() if name not in named},
        grid,
        loading,
        arguments.get("cost_ratio"),
        arguments.get("chat"),
    )
    out, finished = arguments.get("out"), {}
    check_folder(out, arguments.get("resume", False))
    if out is not None:
        folder = Folder(Path(out), grid_plan.config, lambda text: None)
        if folder.existing(resume=arguments.get("resume", False)) is not None:
            finished = folder.rows().rows
        if arguments.get("retry_failed"):
            finished = {key: row for key, row in finished.items() if row["error"] is None}
    loadable(loading)
    all_units = [unit for batch in grid_plan.batches for unit in batch]
    references = sum(unit.reference for unit in all_units)
    to_do = sum(map(len, units.remaining(grid_plan.batches, finished)))
    config = grid_plan.config
    return {
        "model": config["model"],
        "family": config["family"],
        "loading": {name: value for name in _LOADING if (value := getattr(loading, name)) is not None},
        "tasks": config["tasks"],
        "seeds": list(grid.seeds),
        "batch_size": grid.batch_size,
        "samplers": [_entry(entry) for entry in config["samplers"]],
        "notes": config["notes"],
        "rows": {
            "of_samplers": len(all_units) - references,
            "of_references": references,
            "finished": len(all_units) - to_do,
            "to_do": to_do,
        },
        "executor": arguments.get("executor", "local"),
        "out": None if out is None else str(out),
    }


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    identity = {name: entry[name] for name in ("sampler", "spec", "exact", "reference")}
    return {**identity, "arguments": {name: value for name, value in entry["arguments"].items() if value is not None}}


def describe(info: Mapping[str, Any]) -> str:
    """A preview as text."""
    loading = ", ".join(f"{name} {value}" for name, value in info["loading"].items())
    lines = [f"model: {info['model']} ({info['family']}), {loading}"]
    for task in info["tasks"]:
        scored = f", scored by {task['scorer']}" if task["scorer"] else ""
        lines.append(f"task: {task['name']}, {task['problems']} problems{scored}")
    lines.append(f"seeds: {', '.join(map(str, info['seeds']))}; batches of {info['batch_size']}, {info['executor']}")
    for entry in info["samplers"]:
        what = "reference" if entry["reference"] else "sampler"
        arguments = ", ".join(f"{name} {value}" for name, value in entry["arguments"].items())
        lines += [f"{what}: {entry['sampler']}", f"  {entry['spec']}", f"  {entry['exact']}; {arguments}"]
    lines += [f"note: {note}" for note in info["notes"]]
    rows = info["rows"]
    lines.append(
        f"rows: {rows['to_do']} to do, {rows['finished']} finished; {rows['of_samplers']} of samplers, "
        f"{rows['of_references']} of references"
    )
    lines.append("out: nothing is saved" if info["out"] is None else f"out: {info['out']}")
    return "\n".join(lines)
