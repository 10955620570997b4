"""What a comparison would do, told before anything is loaded or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..requests.early import check_folder
from ..tasks import Task
from . import sources, units
from .entries import SamplerLike
from .plan import Grid, Loading, loadable, plan
from .run import Folder

if TYPE_CHECKING:
    from ..api import Model

_ELSE = ("prompts", "scorer", "cost_ratio", "out", "resume", "retry_failed", "executor", "workers", "progress")


def preview(
    model: Model | str | Path,
    task: str | Task | Sequence[str | Task] | None = None,
    samplers: SamplerLike | Sequence[SamplerLike] = (),
    **given: Any,
) -> dict[str, Any]:
    """What `compare` with these arguments would decode, as plain values; nothing is decoded, loaded or written.

    Raises:
        SpecError: what `compare` would refuse before weights are read.

    >>> made = preview("tiny-dream", "arithmetic", ["threshold+eos"], limit=2, references=False)
    >>> made["rows"], made["samplers"][0]["sampler"]
    ({'of_samplers': 2, 'of_references': 0, 'finished': 0, 'to_do': 2}, 'threshold+eos')
    """
    known = {field.name for kind in (Grid, Loading) for field in fields(kind)} | {*_ELSE, "warm_up"}
    grid = Grid(**{field.name: given[field.name] for field in fields(Grid) if field.name in given})
    loading = Loading(**{field.name: given[field.name] for field in fields(Loading) if field.name in given})
    sources.refuse_unnamed(given.get("scorer"), given.get("executor", "local"))
    made = plan(
        str(model) if isinstance(model, Path) else model,
        [samplers] if isinstance(samplers, SamplerLike) else samplers,
        sources.tasks(task, given.get("prompts"), given.get("scorer")),
        {name: value for name, value in given.items() if name not in known},
        grid,
        loading,
        given.get("cost_ratio"),
    )
    out, done = given.get("out"), {}
    check_folder(out, given.get("resume", False))
    if out is not None:
        folder = Folder(Path(out), made.config, lambda text: None)
        if folder.found(resume=given.get("resume", False)) is not None:
            done = folder.rows().rows
        if given.get("retry_failed"):
            done = {key: row for key, row in done.items() if row["error"] is None}
    loadable(loading)
    every = [unit for batch in made.batches for unit in batch]
    references = sum(unit.reference for unit in every)
    to_do = sum(map(len, units.left(made.batches, done)))
    config = made.config
    return {
        "model": config["model"],
        "family": config["family"],
        "loading": {name: getattr(loading, name) for name in ("device", "dtype", "quantize") if getattr(loading, name)},
        "tasks": config["tasks"],
        "seeds": list(grid.seeds),
        "batch_size": grid.batch_size,
        "samplers": [_entry(entry) for entry in config["samplers"]],
        "notes": config["notes"],
        "rows": {
            "of_samplers": len(every) - references,
            "of_references": references,
            "finished": len(every) - to_do,
            "to_do": to_do,
        },
        "executor": given.get("executor", "local"),
        "out": None if out is None else str(out),
    }


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: entry[name] for name in ("sampler", "spec", "exact", "reference")}
    return {**kept, "arguments": {name: value for name, value in entry["arguments"].items() if value is not None}}


def describe(made: Mapping[str, Any]) -> str:
    """The same for a reader."""
    loading = ", ".join(f"{name} {value}" for name, value in made["loading"].items())
    lines = [f"model: {made['model']} ({made['family']}), {loading}"]
    for task in made["tasks"]:
        scored = f", scored by {task['scorer']}" if task["scorer"] else ""
        lines.append(f"task: {task['name']}, {task['problems']} problems{scored}")
    lines.append(f"seeds: {', '.join(map(str, made['seeds']))}; batches of {made['batch_size']}, {made['executor']}")
    for entry in made["samplers"]:
        what = "reference" if entry["reference"] else "sampler"
        arguments = ", ".join(f"{name} {value}" for name, value in entry["arguments"].items())
        lines += [f"{what}: {entry['sampler']}", f"  {entry['spec']}", f"  {entry['exact']}; {arguments}"]
    lines += [f"note: {note}" for note in made["notes"]]
    rows = made["rows"]
    lines.append(
        f"rows: {rows['to_do']} to do, {rows['finished']} finished; {rows['of_samplers']} of samplers, "
        f"{rows['of_references']} of references"
    )
    lines.append("out: nothing is kept" if made["out"] is None else f"out: {made['out']}")
    return "\n".join(lines)
