"""What a comparison is asked to do, checked and written down before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec import __version__
from pardec.comparison import entries, sources, units
from pardec.comparison.entries import Entry, Family
from pardec.comparison.run import FORMAT
from pardec.comparison.units import Problems, Unit
from pardec.comparison.worker import Job
from pardec.models.errors import SpecError
from pardec.models.families import match
from pardec.models.sources import locate, read_json
from pardec.samplers.spec import Spec
from pardec.tasks import Task

if TYPE_CHECKING:
    from pardec.api import Model


_DRAWN_WITH = ("temperature", "top_k", "top_p", "cfg", "cfg_interval")


@dataclass(frozen=True)
class Grid:
    """Which problems are decoded with which seeds, and how many at once."""

    limit: int = 50  # problems a task
    seeds: tuple[int, ...] = (0,)
    split: str = "heldout"
    problem_seed: int = 7
    batch_size: int = 8
    references: bool = True
    replays: int = 4

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("batch_size", 1), ("replays", 0)):
            if getattr(self, name) < least:
                raise SpecError(f"{name} is at least {least}, got {getattr(self, name)}", hint="choose a larger one")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SpecError(f"seeds are different whole numbers, got {list(self.seeds)}", hint="for example 0 and 1")


@dataclass(frozen=True)
class Loading:
    """How the model is loaded where it is given by name, as `pardec.load` takes it."""

    device: str = "auto"
    dtype: str = "auto"
    device_map: str | None = None
    revision: str | None = None
    offline: bool = False
    mask_id: int | None = None
    decoder: str | None = None
    text_encoder: str | None = None


@dataclass(frozen=True)
class Plan:
    """A comparison ready to run."""

    model: Model | str
    loading: Loading
    grid: Grid
    entries: tuple[Entry, ...]
    tasks: Mapping[str, Task]
    problems: Problems
    batches: list[list[Unit]]
    config: dict[str, Any]

    def job(self, traces: Path) -> Job:
        """What the processes are given; `traces` is the folder of the results that are kept."""
        loading, grid = asdict(self.loading), self.grid
        return Job(self.model, loading, self.entries, self.tasks, self.problems, traces, grid.replays, grid.seeds[0])


def plan(
    model: Model | str,
    samplers: Sequence[str | Spec],
    tasks: Mapping[str, Task],
    arguments: Mapping[str, Any],
    grid: Grid,
    loading: Loading,
    cost_ratio: float | None = None,
) -> Plan:
    """Resolves what is asked.

    Raises:
        SpecError: a sampler, an argument or a problem that cannot be.
        ModelError: there is no such model.
    """
    if cost_ratio is not None and not 0 <= cost_ratio < math.inf:
        raise SpecError(f"cost_ratio is at least 0, got {cost_ratio}", hint="0.2: a drafter's forward costs a fifth")
    family, defaults = _known(model, loading)
    _fitting(tasks, defaults is not None, model)
    arguments = {**(defaults or {}), **arguments}
    listed = entries.entries(samplers, arguments, family)
    notes: list[str] = []
    if grid.references:
        listed, notes = entries.with_references(listed, family)
    problems = sources.drawn(tasks, split=grid.split, limit=grid.limit, seed=grid.problem_seed)
    identity = {"pardec": __version__, "family": family, **_identity(model, loading)}
    config = {
        "format": FORMAT,
        **identity,
        "samplers": [asdict(entry) for entry in listed],
        "tasks": [sources.config(tasks[name], problems[name]) for name in tasks],
        **asdict(grid),
        "cost_ratio": cost_ratio,
        "generate": dict(arguments),
        "notes": notes,
    }
    batches = units.batches(listed, problems, grid.seeds, grid.batch_size, identity)
    return Plan(model, loading, grid, tuple(listed), tasks, problems, batches, config)


def _identity(model: Model | str, loading: Loading) -> dict[str, Any]:
    """What of the model decides its rows."""
    if isinstance(model, str):
        kept = {"dtype": loading.dtype, "revision": loading.revision, "mask_id": loading.mask_id}
        return {"model": model, **kept}
    held = model.language_model
    dtype = str(held.dtype).removeprefix("torch.")
    return {"model": held.name, "dtype": dtype, "revision": loading.revision, "mask_id": held.facts.mask_id}


def _known(model: Model | str, loading: Loading) -> tuple[Family, dict[str, Any] | None]:
    """Which loop decodes the model, and of a model of pictures what it draws with where nothing is said.

    Read off its configuration where it is not loaded.
    """
    if not isinstance(model, str):
        held = model.language_model
        drawn = None if held.imaging is None else dict(held.imaging.defaults)
        return "masked" if held.facts.masked else "ar", drawn
    source = locate(model, revision=loading.revision, offline=loading.offline)
    if source.file is not None:  # only models of pictures are single files
        return "ar", {}
    config = read_json(source.folder / "config.json", required=True)
    spec = match(config)
    draws = config.get("model_type") == "janus" or (spec is not None and bool(spec.imaging))
    defaults = read_json(source.folder / "generation_config.json") if draws else None
    kept = None if defaults is None else {name: defaults[name] for name in _DRAWN_WITH if name in defaults}
    return "ar" if spec is None or spec.attention == "causal" else "masked", kept


def _fitting(tasks: Mapping[str, Task], draws: bool, model: Model | str) -> None:
    """Refuses tasks that the model's answers are no answers to."""
    name = model if isinstance(model, str) else model.name
    for task in tasks.values():
        if (task.answers == "picture") != draws:
            what = "pictures" if draws else "text"
            raise SpecError(
                f"{name} answers in {what} and the task {task.name!r} asks for {task.answers}",
                hint="captions is for models of pictures, the other tasks are for text",
            )
