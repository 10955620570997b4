"""The plan of a comparison: its arguments, checked and resolved before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pardec.models.errors import SpecError
from pardec.models.files.catalog import embedded_names
from pardec.models.files.sources import digest_of, locate
from pardec.models.loading.kinds import Kind, kind, sampling_defaults
from pardec.models.loading.recognition import read_description
from pardec.samplers.cards import Family

from ..requests.argument import check_whole, is_number
from ..requests.chat_template import is_embedded
from ..requests.images import default_arguments
from ..requests.preflight import check_answered, check_placing
from ..requests.settings import ignored_arguments
from ..tasks import Task
from ..version import __version__
from . import entries, sources, sweep, units
from .entries import Entry, SamplerLike
from .run import FORMAT
from .units import Problems, Unit
from .worker import Job

if TYPE_CHECKING:
    from ..api import Model


@dataclass(frozen=True)
class Grid:
    """Which problems are decoded with which seeds, and how many at once."""

    limit: int = 50  # problems per task
    seeds: tuple[int, ...] = (0,)
    split: str = "heldout"
    problem_seed: int = 7
    batch_size: int = 8
    references: bool = True
    replays: int = 4
    sweep: bool = False  # each sampler at every value of its quality parameter
    points: int | None = None  # settings of a curve at most

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("batch_size", 1), ("replays", 0), ("problem_seed", None)):
            check_whole(name, getattr(self, name), least, hint=f"for example {name}=8")
        if self.points is not None:
            check_whole("points", self.points, 2, hint="for example points=5 with sweep=True")
            if not self.sweep:
                raise SpecError(f"points={self.points} needs a sweep", hint="add sweep=True, or leave points out")
        for seed in self.seeds:
            check_whole("seed", seed, None, hint="for example seeds=(0, 1)")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SpecError(f"seeds must be distinct whole numbers, got {list(self.seeds)}", hint="for example 0 and 1")


@dataclass(frozen=True)
class Loading:
    """The arguments of `pardec.load`, for a model given by name."""

    device: str = "auto"
    dtype: str = "auto"
    device_map: str | None = None
    revision: str | None = None
    offline: bool = False
    mask_id: int | None = None
    decoder: str | None = None
    text_encoder: str | None = None
    quantize: str | None = None
    packed: bool | None = None
    activations: str | None = None
    cuda_graphs: bool | Literal["auto"] = "auto"
    adapter: str | None = None


@dataclass(frozen=True)
class Plan:
    """A comparison ready to run."""

    model: Model | str
    loading: Loading
    grid: Grid
    chat: bool | None
    entries: tuple[Entry, ...]
    tasks: Mapping[str, Task]
    problems: Problems
    batches: list[list[Unit]]
    config: dict[str, Any]

    def job(self, traces: Path, *, warm_up: bool) -> Job:
        """The job that the processes run; `traces` is the folder for saved results."""
        loading, grid = asdict(self.loading), self.grid
        settings = (traces, grid.batch_size, grid.replays, grid.seeds[0], self.chat)
        return Job(self.model, loading, self.entries, self.tasks, self.problems, *settings, warm_up)


def plan(
    model: Model | str,
    samplers: Sequence[SamplerLike],
    tasks: Mapping[str, Task],
    arguments: Mapping[str, Any],
    grid: Grid,
    loading: Loading,
    cost_ratio: float | None = None,
    chat: bool | None = None,
) -> Plan:
    """Resolves the arguments of a comparison. Raises SpecError, and ModelError for an unknown model."""
    if chat is not None and not isinstance(chat, bool):
        raise SpecError(
            f"chat must be True, False or None, got {chat!r}", hint="None applies a chat template if there is one"
        )
    if cost_ratio is not None and (not (is_number(cost_ratio) and cost_ratio >= 0)):
        raise SpecError(
            f"cost_ratio must be at least 0, got {cost_ratio}",
            hint="cost_ratio=0.2 says that a drafter's forward costs a fifth of the model's",
        )
    info, defaults = _describe(model, loading)
    family = info.family
    check_answered(info, model if isinstance(model, str) else model.name, tasks.values())
    arguments = {**defaults, **arguments}
    swept: dict[str, Any] = {}
    if grid.sweep:
        sampling = bool(arguments.get("temperature"))
        curves = sweep.curves(samplers, family, sampling=sampling, points=grid.points)
        swept = {"sweep": [str(sampler) for sampler in samplers], "curves": [asdict(curve) for curve in curves]}
        swept |= {"points": grid.points} if grid.points else {}
        samplers = sweep.settings(curves, family, sampling=sampling)
    all_entries = entries.entries(samplers, arguments, family)
    notes: list[str] = []
    if grid.references:
        all_entries, notes = entries.with_references(all_entries, family)
    ignored = {ignored_arguments(arguments, entry.arguments) for entry in all_entries} - {None}
    notes += sorted(text for text in ignored if text is not None)
    selection: dict[str, Any] = {"split": grid.split, "n": grid.limit, "seed": grid.problem_seed}
    problems = {name: task.problems(**selection) for name, task in tasks.items()}
    identity = {"pardec": __version__, "family": family, **_identity(model, loading), **_chat(model, chat)}
    config = {
        "format": FORMAT,
        **identity,
        **_checkpoint(model),
        "samplers": [asdict(entry) for entry in all_entries],
        "tasks": [sources.config(tasks[name], problems[name]) for name in tasks],
        **{name: value for name, value in asdict(grid).items() if name not in ("sweep", "points")},
        **swept,
        "cost_ratio": cost_ratio,
        "generate": dict(arguments),
        "notes": notes,
    }
    batches = units.batches(all_entries, tasks, problems, grid.seeds, grid.batch_size, identity)
    return Plan(model, loading, grid, chat, tuple(all_entries), tasks, problems, batches, config)


def _identity(model: Model | str, loading: Loading) -> dict[str, Any]:
    """The properties of the model that determine its rows."""
    if isinstance(model, str):
        settings = {"dtype": loading.dtype, "revision": loading.revision, "mask_id": loading.mask_id}
        adapter = {} if loading.adapter is None else {"adapter": loading.adapter}
        return {"model": model, **settings, **_weights(loading), **adapter}
    dtype = str(model.network.dtype).removeprefix("torch.")
    settings = {"dtype": dtype, "revision": loading.revision, "mask_id": model.driver.mask_id}
    version = model.network.weights_version
    updated = {"weights_version": version} if version else {}
    return {"model": model.name, **settings, **model.weight_settings, **updated}


def _checkpoint(model: Model | str) -> dict[str, str]:
    """`digest_of` the model's files, as checkpoints may share a name; empty for embedded models."""
    name, path = (model, model) if isinstance(model, str) else (model.name, model.path)
    found = None if path is None or name in embedded_names() else digest_of(path)
    return {} if found is None else {"checkpoint": found}


def _chat(model: Model | str, chat: bool | None) -> dict[str, str]:
    """Whether prompts are put into the chat template; empty for an embedded model's default, which has none."""
    embedded = model in embedded_names() if isinstance(model, str) else is_embedded(model)
    return {} if chat is None and embedded else {"chat": "auto" if chat is None else "chat" if chat else "raw"}


def _weights(loading: Loading) -> dict[str, Any]:
    """The given arguments of `load` that change the weights' format; they are part of a row's key."""
    given = {name: getattr(loading, name) for name in ("quantize", "packed", "activations")}
    return {name: value for name, value in given.items() if value is not None}


def _describe(model: Model | str, loading: Loading) -> tuple[Kind, Mapping[str, Any]]:
    """The kind of a model and its default sampling settings, without reading its weights."""
    if not isinstance(model, str):
        imaging = model.imaging
        if imaging is None:
            return Kind(model.name, model.family), {}
        return Kind(model.name, model.family, imaging.kind), _sampling_defaults(imaging.defaults)
    source = locate(model, revision=loading.revision, offline=loading.offline, weights=False)
    config, _ = read_description(source)
    info = kind(source.name, config)
    weights_only = source.file is not None and info.family == "ar"  # a bare weights file has no sampling defaults
    if info.draws is None or weights_only:
        return info, {}
    return info, _sampling_defaults(sampling_defaults(source, config))


def loadable(loading: Loading) -> None:
    """Raises SpecError for settings that no machine can load; the decoding machine checks the rest."""
    check_placing(asdict(loading))


def family_of(model: str, loading: Loading) -> Family:
    """The family of a model (the loop that decodes it), from its configuration."""
    loadable(loading)
    return _describe(model, loading)[0].family


def _sampling_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in default_arguments(defaults).items() if name != "sampler"}
