"""The entries of a comparison: each sampler with its settings, and the references that figures are relative to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.cards import Family
from pardec.samplers.presets import preset
from pardec.samplers.registry import resolve
from pardec.samplers.spec import Policy, Spec, parse

from ..drivers import DRIVERS
from ..requests.settings import ARGUMENTS as declared
from ..requests.settings import Settings
from ..tasks import Problem, Task

SamplerLike = str | Spec | Policy

# The arguments of `generate` that apply to every row and can be written into a run's folder.
ARGUMENTS = tuple(name for name, each in declared.items() if each.compared)


@dataclass(frozen=True)
class Entry:
    """One sampler of a run. `floor` and `baseline` name the reference entries that it is compared with, if any."""

    sampler: str  # as the user wrote it; for a reference, its name in the run
    spec: str  # resolved, with every parameter
    exact: str  # "greedy", "distribution" or "relaxed"
    asked: str  # the `sampler` argument of `generate`
    # Arguments of `generate`, including those of a preset. `max_new_tokens` is None if neither sets it: each problem
    # then gets the length that its task declares.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False  # decoded only for the figures of other entries, and not listed
    floor: str | None = None  # `oracle` with the same cache; masked models only
    baseline: str | None = None  # `sequential`, without a cache

    def arguments_for(self, task: Task, problem: Problem) -> dict[str, Any]:
        """The arguments of `generate` for a problem; the problem's own settings override the entry's."""
        arguments = {**self.arguments, **(problem.settings or {})}
        if arguments["max_new_tokens"] is None:
            arguments["max_new_tokens"] = task.length(problem)
        return arguments


def entries(samplers: Sequence[SamplerLike], arguments: Mapping[str, Any], family: Family) -> list[Entry]:
    """The samplers of a run, resolved. Raises SpecError, also for two that resolve to the same."""
    for name in arguments:
        if name not in ARGUMENTS:
            raise SpecError(
                f"compare takes no argument {name!r}{did_you_mean(name, (*ARGUMENTS, 'samplers'))}",
                hint=f"of generate's arguments it takes {', '.join(ARGUMENTS)}",
            )
    if not samplers:
        raise SpecError("no sampler is named", hint='name at least one, such as samplers=["sequential", "threshold"]')
    by_identity: dict[tuple[str, str], Entry] = {}
    for sampler in samplers:
        entry = _entry(sampler, arguments, family)
        first = by_identity.setdefault(_identity(entry), entry)
        if first is not entry:
            raise SpecError(f"{first.sampler!r} and {entry.sampler!r} are the same sampler", hint="keep one of them")
    return list(by_identity.values())


def with_references(requested: Sequence[Entry], family: Family) -> tuple[list[Entry], list[str]]:
    """The entries linked to their references, followed by the references; and notes on references that are missing."""
    if not DRIVERS[family].compares_tokens:
        return list(requested), []
    by_identity = {_identity(entry): entry for entry in requested}
    result, notes = [], []
    for entry in requested:
        roles: dict[str, str] = {}
        if entry.arguments["temperature"]:
            notes.append(f"{entry.sampler}: no agreement and no floor, since it samples")
        else:
            for role, specs in DRIVERS[family].references(parse(entry.asked)).items():
                try:
                    roles[role] = _reference_entry(entry, specs, by_identity, family).sampler
                except SpecError as error:
                    notes.append(f"{entry.sampler}: no {role}, since {error}")
        result.append(replace(entry, floor=roles.get("floor"), baseline=roles.get("baseline")))
    return [*result, *(entry for entry in by_identity.values() if entry.reference)], notes


def _entry(sampler: SamplerLike, arguments: Mapping[str, Any], family: Family) -> Entry:
    name = sampler if isinstance(sampler, str) else str(parse(sampler))
    passed = {key: value for key, value in arguments.items() if key != "max_new_tokens" or value is not None}
    settings = Settings.of({**passed, "sampler": name}, DRIVERS[family].defaults)  # adds the arguments of a preset
    values = {name: getattr(settings, name) for name in ARGUMENTS}
    if "max_new_tokens" not in passed and not _preset_length(name):
        values["max_new_tokens"] = None
    spec = str(settings.sampler)
    resolved = resolve(spec, family, sampling=settings.temperature > 0)
    return Entry(name, str(resolved.spec), resolved.exact, spec, values)


def _preset_length(name: str) -> bool:
    """Whether the sampler is a preset that sets a length."""
    return name.startswith("preset:") and "max_new_tokens" in preset(name).arguments


def _reference_entry(entry: Entry, specs: Sequence[str], known: dict[tuple[str, str], Entry], family: Family) -> Entry:
    """The entry that decodes one of `specs` with the arguments of `entry`: an existing one, or a new reference."""
    resolved = [_entry(spec, entry.arguments, family) for spec in specs]
    for same in resolved:
        if _identity(same) in known:
            return known[_identity(same)]
    new = replace(resolved[0], reference=True)
    if any(other.sampler == new.sampler for other in known.values()):  # it has the arguments of another preset
        new = replace(new, sampler=f"{new.sampler} as {entry.sampler}")
    known[_identity(new)] = new
    return new


def _identity(entry: Entry) -> tuple[str, str]:
    return entry.spec, repr(entry.arguments)
