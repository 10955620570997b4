"""What is compared: each sampler with all that decides what it decodes, and the references that figures are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.cards import Family
from pardec.samplers.registry import resolve
from pardec.samplers.spec import Part, Policy, Spec, parse

from ..requests.settings import VECTORS, Settings

SamplerLike = str | Spec | Policy

# The arguments of `generate` that hold for every row alike and that a run's folder can name.
ARGUMENTS = (
    "max_new_tokens", "block_length", "temperature", "top_k", "top_p", "cfg", "cfg_interval", "stop_ids",
    "block_align",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One sampler of a run. `floor` and `baseline` name the entries it is held to; None where there are none."""

    sampler: str  # as written; of a reference, what stands for it
    spec: str  # resolved, with every parameter
    exact: str  # "greedy", "distribution" or "relaxed"
    asked: str  # what `generate` is given
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of `generate`, those of a preset among them
    reference: bool = False  # decoded for others' figures, and not listed
    floor: str | None = None  # `oracle` with the same cache; masked models only
    baseline: str | None = None  # `sequential`, without a cache


def entries(samplers: Sequence[SamplerLike], arguments: Mapping[str, Any], family: Family) -> list[Entry]:
    """The samplers of a run, resolved. Raises SpecError, also where two are the same."""
    for name in arguments:
        if name not in ARGUMENTS:
            raise SpecError(
                f"compare takes no argument {name!r}{did_you_mean(name, (*ARGUMENTS, 'samplers'))}",
                hint=f"of those of generate it takes {', '.join(ARGUMENTS)}",
            )
    if not samplers:
        raise SpecError("no sampler is given", hint="name at least one, such as sequential and threshold")
    found: dict[tuple[str, str], Entry] = {}
    for sampler in samplers:
        made = _entry(sampler, arguments, family)
        same = found.setdefault(_identity(made), made)
        if same is not made:
            raise SpecError(f"{same.sampler!r} and {made.sampler!r} are the same sampler", hint="keep one of them")
    return list(found.values())


def with_references(asked: Sequence[Entry], family: Family) -> tuple[list[Entry], list[str]]:
    """The entries, held to references where there can be any, then the references; and notes of what is left out.

    Vectors are the same as others or not, and say little in being so: of them there are none.
    """
    if family == "continuous":
        return list(asked), []
    known = {_identity(entry): entry for entry in asked}
    held, notes = [], []
    for entry in asked:
        names: dict[str, str] = {}
        if entry.arguments["temperature"]:
            notes.append(f"{entry.sampler}: no agreement and no floor, since it samples")
        else:
            for role, specs in _references(entry, family).items():
                try:
                    names[role] = _held_to(entry, specs, known, family).sampler
                except SpecError as error:
                    notes.append(f"{entry.sampler}: no {role}, since {error}")
        held.append(replace(entry, floor=names.get("floor"), baseline=names.get("baseline")))
    return [*held, *(entry for entry in known.values() if entry.reference)], notes


def _references(entry: Entry, family: Family) -> dict[str, tuple[str, ...]]:
    """For each role the specs that fill it, of which the first is the one to add.

    Up to the first end token `sequential` is the same with `eos` and without. The floor stops where the entry stops.
    """
    if family == "ar":
        return {"baseline": ("sequential",)}
    asked = parse(entry.asked)
    stops = [part for part in asked.parts if part.name == "eos"]
    oracle = Spec((Part("oracle"), *stops), asked.cache)
    return {"floor": (str(oracle),), "baseline": ("sequential+eos", "sequential")}


def _entry(sampler: SamplerLike, arguments: Mapping[str, Any], family: Family) -> Entry:
    named = sampler if isinstance(sampler, str) else str(parse(sampler))
    defaults = VECTORS if family == "continuous" else None
    settings = Settings.of({**arguments, "sampler": named}, defaults)  # lets a preset put its own arguments in
    asked = str(settings.sampler)
    made = resolve(asked, family, sampling=settings.temperature > 0)
    return Entry(named, str(made.spec), made.exact, asked, {name: getattr(settings, name) for name in ARGUMENTS})


def _held_to(entry: Entry, specs: Sequence[str], known: dict[tuple[str, str], Entry], family: Family) -> Entry:
    """The entry that decodes one of `specs` with the arguments of `entry`: one that is known, or a new reference."""
    made = [_entry(spec, entry.arguments, family) for spec in specs]
    for alike in made:
        if _identity(alike) in known:
            return known[_identity(alike)]
    new = replace(made[0], reference=True)
    if any(other.sampler == new.sampler for other in known.values()):  # with the arguments of another preset
        new = replace(new, sampler=f"{new.sampler} as {entry.sampler}")
    known[_identity(new)] = new
    return new


def _identity(entry: Entry) -> tuple[str, str]:
    return entry.spec, repr(entry.arguments)
