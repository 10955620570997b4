"""What a search is to try, and on which problems; and the same told before weights are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.registry import resolve
from pardec.samplers.spec import parse

from ...requests.settings import check_whole, is_number
from ...tasks import Task
from ..entries import SamplerLike
from . import confirming
from .bench import Chosen, deal
from .fit import Fit
from .halving import room, rungs
from .space import Candidate, Space

COSTS = ("nfe", "tokens_fed", "seconds")
BASELINE = "sequential"
BUDGET = 1000  # decodes of a search


@dataclass(frozen=True)
class Search:
    """What is asked of `tune` beside the model and the tasks; SpecError for what cannot be."""

    max_drop: float = 1.0
    budget: int = BUDGET
    confirm: int | None = None
    cost: str = "nfe"
    samplers: Sequence[SamplerLike] | None = None
    caches: Sequence[str] | None = None
    block_lengths: Sequence[int] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise SpecError(
                f"unknown cost {self.cost!r}{did_you_mean(self.cost, COSTS)}", hint=f"it is one of {', '.join(COSTS)}"
            )
        for name, least in (("budget", 1), ("confirm", 1), ("seed", None)):
            if name != "confirm" or self.confirm is not None:
                check_whole(name, getattr(self, name), least, hint=f"for example {name}=100")
        if not (is_number(self.max_drop) and 0 <= self.max_drop < 100):
            raise SpecError(
                f"max_drop is in points, at least 0 and below 100, got {self.max_drop}", hint="1.0 is one point"
            )

    def space(self, fit: Fit) -> Space:
        """All that there is to try with a model, samplers that were named checked. Raises SpecError."""
        for sampler in self.samplers or ():
            resolve(sampler, fit.family, sampling=fit.arguments.get("temperature", 0) > 0)
        mix = self.cost != "nfe" or self.caches is not None
        return fit.space(BASELINE, self.caches, self.block_lengths, mix=mix)


@dataclass(frozen=True)
class Prepared:
    """Candidates with the problems of the search and of the confirmation."""

    space: Space
    candidates: list[Candidate]
    tuning: Chosen
    confirmation: Chosen


def prepare(fit: Fit, tasks: Mapping[str, Task], asked: Search) -> Prepared:
    """Puts a search together. Raises SpecError where nothing is left to try."""
    space = asked.space(fit)
    if asked.samplers is None:
        candidates = space.candidates(room(asked.budget), asked.seed)
    else:
        candidates = space.of([one if isinstance(one, str) else str(parse(one)) for one in asked.samplers])
    if not candidates:
        raise SpecError("none of the samplers can be used with this model", hint='"pardec list samplers" has others')
    fresh = confirming.enough(asked.max_drop) if asked.confirm is None else asked.confirm
    tuning, confirmation = deal(list(tasks.values()), max(asked.budget // 2, 1), fresh, asked.seed)
    return Prepared(space, candidates, tuning, confirmation)


def outline(fit: Fit, made: Prepared, tasks: Mapping[str, Task], asked: Search, out: Path | None) -> dict[str, Any]:
    """What a search would do, as plain values."""
    return {
        "model": fit.name,
        "family": fit.family,
        "tasks": list(tasks),
        "arguments": dict(fit.arguments),
        "max_drop": asked.max_drop,
        "cost": asked.cost,
        "budget": asked.budget,
        "rungs": rungs(len(made.candidates)),
        "candidates": [
            {"sampler": one.spec, "block_length": one.block_length, "spec": fit.spec(one)} for one in made.candidates
        ],
        "baseline": str(made.space.exact),
        "problems": {"searched": len(made.tuning.owners), "confirmed": len(made.confirmation.owners)},
        "out": None if out is None else str(out),
    }


def describe(made: Mapping[str, Any]) -> str:
    """The same for a reader."""
    arguments = "".join(f", {name} {value}" for name, value in made["arguments"].items())
    problems = made["problems"]
    lines = [f"model: {made['model']} ({made['family']}){arguments}", f"tasks: {', '.join(made['tasks'])}"]
    lines.append(
        f"search: {made['budget']} decodes at most, {len(made['candidates'])} candidates, {made['rungs']} rungs"
    )
    for one in made["candidates"]:
        block = "" if one["block_length"] is None else f" in blocks of {one['block_length']}"
        lines += [f"candidate: {one['sampler']}{block}", f"  {one['spec']}"]
    lines.append(f"problems: up to {problems['searched']} to search, {problems['confirmed']} fresh ones to confirm")
    lines.append(f"held to: {made['baseline']}, within {made['max_drop']:g} points; least {made['cost']}")
    lines.append("note: without its weights, what the model itself refuses is not known yet")
    lines.append("out: nothing is kept" if made["out"] is None else f"out: {made['out']}")
    return "\n".join(lines)
