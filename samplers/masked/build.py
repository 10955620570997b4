"""Builds the masked loop's sampler from a parsed spec, with defaults for stages that the spec does not name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..cards import MASKED, SINGLE, name_of
from ..spec import Spec
from ..spec_values import Named, add_default, by_stage, check_bases, exactness, full, refuse_doubles
from . import compatibility
from .contracts import (
    Block,
    Branch,
    Cache,
    Finish,
    Inputs,
    Logits,
    MaskedSampler,
    Propose,
    Query,
    Revise,
    Select,
    Stage,
    Widen,
)

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

_BASES = {
    "block": Block,
    "branch": Branch,
    "query": Query,
    "inputs": Inputs,
    "logits": Logits,
    "propose": Propose,
    "select": Select,
    "widen": Widen,
    "revise": Revise,
    "finish": Finish,
    "cache": Cache,
}


def build(spec: Spec, *, sampling: bool = False) -> MaskedSampler:
    """Builds the sampler, with one object per stage.

    Raises SpecError for two methods where one is allowed, a cache without `@`, stages that do not go together.
    """
    stages = by_stage(spec, "masked")
    # A class of a user's own may have the methods of its stage without the base class.
    derived = {stage: [one for one in named if isinstance(one[1], Stage)] for stage, named in stages.items()}
    check_bases(derived, _BASES)
    _add_defaults(stages, spec)
    refuse_doubles(spec, stages)
    order = [named for stage in MASKED for named in stages[stage]]
    parts = [full(name, method) for name, method in order]
    greedy = all(exactness(name, method, "masked") == "greedy" for name, method in order)
    each = {stage: tuple(method for _, method in named) for stage, named in stages.items()}
    methods: dict[str, Any] = {
        stage: next(iter(several), None) if stage in SINGLE else several for stage, several in each.items()
    }
    sampler = MaskedSampler(
        Spec(tuple(parts[:-1]), parts[-1]),  # the cache is the last stage, and there is one
        "greedy" if greedy else "relaxed",
        **methods,
    )
    for stage in sampler.stages:
        stage.check(sampler)
    compatibility.check(sampler)
    return sampler


def fit(sampler: MaskedSampler, model: LanguageModel) -> MaskedSampler:
    """The sampler, and its spec, with unset parameters of its stages taken from the model.
    Raises SpecError for a parameter that this model cannot have.
    """
    new: dict[int, Stage] = {id(stage): stage.fit(model) for stage in sampler.stages}
    if all(stage is new[id(stage)] for stage in sampler.stages):
        return sampler
    values = {name_of(stage): stage for stage in new.values() if hasattr(type(stage), "registered")}
    parts = [full(part.name, values[part.name]) if part.name in values else part for part in sampler.spec.every]
    chosen: dict[str, Any] = {}
    for name in MASKED:
        stage = getattr(sampler, name)
        if stage is None:
            continue
        chosen[name] = new[id(stage)] if name in SINGLE else tuple(new[id(one)] for one in stage)
    return replace(sampler, spec=Spec(tuple(parts[:-1]), parts[-1]), **chosen)


def _add_defaults(stages: dict[str, Named], spec: Spec) -> None:
    """Fills the stages that the spec leaves out; a select may say which proposer, and which of its measures."""
    defaults = (method.default_select for named in stages.values() for _, method in named)
    add_default(stages, "select", next(filter(None, defaults), "threshold"), "masked")
    select = stages["select"][0][1]
    add_default(stages, "propose", select.default_propose, "masked")
    (name, propose), explicit = stages["propose"][0], {part.name: dict(part.params) for part in spec.parts}
    measures = any(field.name == "of" for field in fields(propose))
    if select.default_of is not None and measures and "of" not in explicit.get(name, {}):
        stages["propose"][0] = name, replace(propose, of=select.default_of)
    add_default(stages, "cache", "none", "masked")
