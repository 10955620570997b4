"""Builds the verify loop's sampler from a parsed spec, with defaults for stages that the spec does not name."""

from __future__ import annotations

from pardec.models.errors import SpecError

from ..cards import AUTOREGRESSIVE, find
from ..limits import check_nodes
from ..spec import Spec
from ..spec_values import Named, add_default, build_method, exactness, full, refuse_doubles
from .contracts import Acceptance, Drafter, Length, Shape, SpeculativeSampler

_BASES = {"draft": Drafter, "shape": Shape, "length": Length, "accept": Acceptance}
_ORDER = ("greedy", "distribution", "relaxed")  # from the strictest promise to none


def build(parsed: Spec, *, sampling: bool = False) -> SpeculativeSampler:
    """One object a stage; `sampling` chooses the acceptance if the spec names none.

    Raises SpecError for two policies for one stage, a cache, or stages that cannot be combined.
    """
    if parsed.cache is not None:
        raise SpecError(
            f"{str(parsed)!r} names a cache, but autoregressive models keep all K/V", hint="leave out what follows '@'"
        )
    stages: dict[str, Named] = {stage: [] for stage in AUTOREGRESSIVE}
    for part in parsed.parts:
        stages[find(part.name, "ar").stage].append((part.name, build_method(part, "ar")))
    refuse_doubles(parsed, stages)
    for stage, named in stages.items():
        for name, policy in named:
            if not isinstance(policy, _BASES[stage]):
                raise SpecError(
                    f"{name!r} is registered for the stage {stage!r} but is no {_BASES[stage].__name__}",
                    hint=f"derive it from pardec.samplers.speculative.contracts.{_BASES[stage].__name__}",
                )
    add_default(stages, "draft", "sequential", "ar")
    drafter = stages["draft"][0][1]
    add_default(stages, "accept", drafter.default_acceptance or ("speculative" if sampling else "greedy"), "ar")
    if drafter.takes_shape:
        add_default(stages, "shape", "chain", "ar")
    for stage in ("shape", "length"):
        if stages[stage] and not (drafter.takes_shape if stage == "shape" else drafter.takes_length):
            raise SpecError(
                f"{stages[stage][0][0]!r} is for drafting models, and {stages['draft'][0][0]!r} has none",
                hint=f"leave {stages[stage][0][0]!r} out, or draft with model:name=...",
            )
    order = [named for stage in AUTOREGRESSIVE for named in stages[stage]]
    promises = [exactness(name, policy, "ar") for name, policy in order]
    if not sampling:
        promises = ["greedy" if word == "distribution" else word for word in promises]  # p is a point mass
    chosen = {stage: named[0][1] for stage, named in stages.items() if named}
    sampler = SpeculativeSampler(
        Spec(tuple(full(*named) for named in order)), max(promises, key=_ORDER.index), **chosen
    )
    if sampler.shape is not None and (nodes := sampler.shape.width(drafter.k) - 1) > drafter.k:  # a chain fits the text
        check_nodes(stages["shape"][0][0], nodes)
    for stage in sampler.stages:
        stage.check(sampler)
    return sampler
