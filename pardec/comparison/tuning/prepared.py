"""The candidates and problems of a search, and its preview before weights are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.registry import resolve
from pardec.samplers.spec import parse

from ...requests.argument import check_whole, is_number
from ...tasks import Task
from ..entries import SamplerLike
from . import confirming
from .bench import ProblemSet, split_problems
from .fit import Fit
from .halving import max_candidates, rungs
from .space import Candidate, Space

COSTS = ("nfe", "tokens_fed", "seconds")
BASELINE = "sequential"
BUDGET = 1000  # decodes of a search


@dataclass(frozen=True)
class SearchRequest:
    """The arguments of `tune` besides the model and the tasks; raises SpecError for invalid ones."""

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
                f"max_drop must be a number of points of at least 0 and below 100, got {self.max_drop}",
                hint="1.0 is one point",
            )

    def space(self, fit: Fit) -> Space:
        """The search space of a model. Raises SpecError for a sampler that does not exist."""
        for sampler in self.samplers or ():
            resolve(sampler, fit.family, sampling=fit.arguments.get("temperature", 0) > 0)
        mix = self.cost != "nfe" or self.caches is not None
        return fit.space(BASELINE, self.caches, self.block_lengths, mix=mix)


@dataclass(frozen=True)
class SearchPlan:
    """The candidates, and the problems for the search and for the confirmation."""

    space: Space
    baseline: Candidate  # gives the tokens of sequential decoding, in as few forwards as the default's parts allow
    candidates: list[Candidate]  # without the baseline
    tuning: ProblemSet
    confirmation: ProblemSet


def prepare(fit: Fit, tasks: Mapping[str, Task], request: SearchRequest) -> SearchPlan:
    """Plans a search. Raises SpecError if there are no candidates."""
    space = request.space(fit)
    baseline = fit.exact(space.exact, Candidate(BASELINE))
    count = max_candidates(request.budget)
    if request.samplers is None:
        candidates = space.candidates(count + 1, request.seed)
    else:
        candidates = space.of(
            [sampler if isinstance(sampler, str) else str(parse(sampler)) for sampler in request.samplers]
        )
    if not candidates:
        raise SpecError("none of the samplers can be used with this model", hint='"pardec list samplers" has others')
    own = fit.spec(baseline)
    candidates = [each for each in candidates if each.block_length is not None or fit.spec(each) != own]
    if not candidates:
        raise SpecError(
            f"{baseline} is the sampler that others are compared with, and no other is searched",
            hint="name others, or leave samplers out",
        )
    candidates = candidates if request.samplers is not None else candidates[:count]
    count = confirming.problem_count(request.max_drop) if request.confirm is None else request.confirm
    tuning, confirmation = split_problems(list(tasks.values()), max(request.budget // 2, 1), count, request.seed)
    return SearchPlan(space, baseline, candidates, tuning, confirmation)


def summary(
    fit: Fit, plan: SearchPlan, tasks: Mapping[str, Task], request: SearchRequest, out: Path | None
) -> dict[str, Any]:
    """The plan of a search as plain values."""
    return {
        "model": fit.name,
        "family": fit.family,
        "tasks": list(tasks),
        "arguments": dict(fit.arguments),
        "max_drop": request.max_drop,
        "cost": request.cost,
        "budget": request.budget,
        "rungs": rungs(len(plan.candidates)),
        "candidates": [
            {"sampler": candidate.spec, "block_length": candidate.block_length, "spec": fit.spec(candidate)}
            for candidate in plan.candidates
        ],
        "baseline": str(plan.baseline),
        "problems": {"searched": len(plan.tuning.owners), "confirmed": len(plan.confirmation.owners)},
        "out": None if out is None else str(out),
    }


def describe(info: Mapping[str, Any]) -> str:
    """The plan of a search as text."""
    arguments = "".join(f", {name} {value}" for name, value in info["arguments"].items())
    problems = info["problems"]
    lines = [f"model: {info['model']} ({info['family']}){arguments}", f"tasks: {', '.join(info['tasks'])}"]
    lines.append(
        f"search: {info['budget']} decodes at most, {len(info['candidates'])} candidates, {info['rungs']} rungs"
    )
    for candidate in info["candidates"]:
        block = "" if candidate["block_length"] is None else f" in blocks of {candidate['block_length']}"
        lines += [f"candidate: {candidate['sampler']}{block}", f"  {candidate['spec']}"]
    lines.append(f"problems: up to {problems['searched']} to search, {problems['confirmed']} fresh ones to confirm")
    lines.append(f"baseline: {info['baseline']}, within {info['max_drop']:g} points; least {info['cost']}")
    lines.append("note: the model may reject some candidates when its weights are loaded")
    lines.append("out: nothing is kept" if info["out"] is None else f"out: {info['out']}")
    return "\n".join(lines)
