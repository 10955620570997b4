"""Builds the verify loop's sampler from a parsed spec, with defaults for stages that the spec does not name."""

from __future__ import annotations

from typing import Any

from pardec.models.errors import SpecError

from ..cards import AUTOREGRESSIVE, SINGLE
from ..limits import check_nodes
from ..spec import Spec, parse
from ..spec_values import add_default, build_method, by_stage, check_bases, exactness, full, refuse_doubles
from ..traits import Trait
from . import compatibility
from .contracts import Acceptance, Cache, Drafter, Length, Logits, Shape, SpeculativeSampler, Texts

_BASES = {
    "draft": Drafter,
    "shape": Shape,
    "length": Length,
    "logits": Logits,
    "accept": Acceptance,
    "cache": Cache,
    "texts": Texts,
}
_ORDER = ("greedy", "distribution", "relaxed")  # promises, the strictest first


def build(parsed: Spec, *, sampling: bool = False) -> SpeculativeSampler:
    """Builds the sampler, one object per stage; `sampling` chooses the acceptance if the spec names none.

    Raises SpecError for two policies for one stage, a cache without `@`, or stages that cannot be combined.
    """
    stages = by_stage(parsed, "ar")
    refuse_doubles(parsed, stages)
    check_bases(stages, _BASES)
    if stages["texts"]:
        return _of_texts(parsed, *stages["texts"][0])
    add_default(stages, "draft", "sequential", "ar")
    drafter = stages["draft"][0][1]
    add_default(stages, "accept", drafter.default_acceptance or ("speculative" if sampling else "greedy"), "ar")
    if Trait.TAKES_SHAPE in drafter.provides:
        add_default(stages, "shape", "chain", "ar")
    order = [named for stage in AUTOREGRESSIVE for named in stages[stage]]
    promises = [exactness(name, policy, "ar") for name, policy in order]
    if not sampling:
        promises = ["greedy" if word == "distribution" else word for word in promises]  # p is a point mass
    methods: dict[str, Any] = {stage: tuple(method for _, method in named) for stage, named in stages.items()}
    chosen = {stage: each[0] if stage in SINGLE else each for stage, each in methods.items() if each}
    parts = tuple(full(*named) for named in order)
    spec = Spec(parts[:-1], parts[-1]) if stages["cache"] else Spec(parts)
    sampler = SpeculativeSampler(spec, max(promises, key=_ORDER.index), **chosen)
    compatibility.check(sampler)
    if sampler.shape is not None and (nodes := sampler.shape.width(drafter.k) - 1) > drafter.k:  # a chain fits the text
        check_nodes(stages["shape"][0][0], nodes)
    for stage in sampler.stages:
        stage.check(sampler)
    return sampler


def _of_texts(parsed: Spec, name: str, texts: Texts) -> SpeculativeSampler:
    """The sampler of a `texts` method, which has its own loop and no other stage."""
    if len(parsed.every) > 1:
        others = ", ".join(part.name for part in parsed.every if part.name != name)
        raise SpecError(f"{name!r} has its own loop and cannot be combined with {others}", hint=f"write {name!r} alone")
    draft, accept = (build_method(parse(each).parts[0], "ar") for each in ("sequential", "greedy"))
    return SpeculativeSampler(Spec((full(name, texts),)), exactness(name, texts, "ar"), draft, accept, texts=texts)
