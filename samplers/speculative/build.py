"""From a parsed spec to the sampler that the verify loop runs; what the spec leaves open takes the defaults."""

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
    """One object a stage; `sampling` decides on the acceptance where none is named.

    Raises:
        SpecError: two policies where one is allowed, a cache, or stages that do not go together.
    """
    if parsed.cache is not None:
        raise SpecError(
            f"{str(parsed)!r} names a cache, and autoregressive models keep every K/V",
            hint="leave out what follows '@'",
        )
    stages: dict[str, Named] = {stage: [] for stage in AUTOREGRESSIVE}
    for part in parsed.parts:
        stages[find(part.name, "ar").stage].append((part.name, build_method(part, "ar")))
    refuse_doubles(parsed, stages)
    for stage, named in stages.items():
        for name, made in named:
            if not isinstance(made, _BASES[stage]):
                raise SpecError(
                    f"{name!r} is registered for the stage {stage!r} and is no {_BASES[stage].__name__}",
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
                f"{stages[stage][0][0]!r} says how a drafting model drafts, and {stages['draft'][0][0]!r} has none",
                hint=f"leave {stages[stage][0][0]!r} out, or draft with model:name=...",
            )
    order = [named for stage in AUTOREGRESSIVE for named in stages[stage]]
    kept = [exactness(name, made, "ar") for name, made in order]
    if not sampling:
        kept = ["greedy" if word == "distribution" else word for word in kept]  # the law is a point mass
    chosen = {stage: named[0][1] for stage, named in stages.items() if named}
    made = SpeculativeSampler(Spec(tuple(full(*named) for named in order)), max(kept, key=_ORDER.index), **chosen)
    if made.shape is not None and (nodes := made.shape.width(drafter.k) - 1) > drafter.k:  # a chain ends with the text
        check_nodes(stages["shape"][0][0], nodes)
    for stage in made.stages:
        stage.check(made)
    return made
