"""From a parsed spec to the sampler that the masked loop runs; what the spec leaves open takes the defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError

from ..cards import MASKED, SINGLE, find
from ..spec import Spec
from ..spec_values import Named, add_default, build, exactness, full, refuse_doubles
from .contracts import Checked, Fitting, MaskedSampler

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel


_Stages = dict[str, Named]


def assemble(parsed: Spec) -> MaskedSampler:
    """One object a stage. Raises SpecError for two where one is allowed, and for a cache without `@`."""
    stages = _by_stage(parsed)
    brought = [made.brings for named in stages.values() for _, made in named if hasattr(made, "brings")]
    add_default(stages, "select", brought[0] if brought else "threshold", "masked")
    select = stages["select"][0][1]
    add_default(stages, "propose", getattr(select, "prefers", "confidence"), "masked")
    _measure(parsed, stages, select)
    add_default(stages, "cache", "none", "masked")
    refuse_doubles(parsed, stages)
    order = [named for stage in MASKED for named in stages[stage]]
    parts = [full(name, made) for name, made in order]
    sampler = MaskedSampler(
        spec=Spec(tuple(parts[:-1]), parts[-1]),  # the cache is the last stage, and there is one
        exact="greedy" if all(exactness(name, made, "masked") == "greedy" for name, made in order) else "relaxed",
        **_built(stages),
    )
    for _, made in order:
        if isinstance(made, Checked):
            made.check(sampler)
    return sampler


def fitted(sampler: MaskedSampler, model: LanguageModel) -> MaskedSampler:
    """The sampler with what its stages leave open taken from the model, in its spec too.

    Raises:
        SpecError: a stage that is not for this model.
    """
    assert sampler.spec.cache is not None, "a resolved spec names its cache"
    parts, made = [*sampler.spec.parts, sampler.spec.cache], dict[str, Any]()
    for stage in MASKED:
        held = getattr(sampler, stage)
        methods = (held,) if stage in SINGLE else held
        fit = tuple(method.fitted(model) if isinstance(method, Fitting) else method for method in methods)
        new = {type(one): one for one, other in zip(fit, methods, strict=True) if one is not other}
        if new:
            made[stage] = fit[0] if stage in SINGLE else fit
            kinds = [find(part.name, "masked").make for part in parts]
            parts = [full(p.name, new[kind]) if kind in new else p for p, kind in zip(parts, kinds, strict=True)]
    return replace(sampler, spec=Spec(tuple(parts[:-1]), parts[-1]), **made) if made else sampler


def _by_stage(parsed: Spec) -> _Stages:
    stages: _Stages = {stage: [] for stage in MASKED}
    for part in parsed.parts:
        stage = find(part.name, "masked").stage
        if stage == "cache":
            raise SpecError(f"{part.name!r} is a cache and follows '@'", hint=f"write ...@{part}")
        stages[stage].append((part.name, build(part, "masked")))
    if parsed.cache is not None:
        name, stage = parsed.cache.name, find(parsed.cache.name, "masked").stage
        if stage != "cache":
            raise SpecError(f"{name!r} after '@' is no cache but a {stage} stage", hint="join it with '+' instead")
        stages["cache"].append((name, build(parsed.cache, "masked")))
    return stages


def _measure(parsed: Spec, stages: _Stages, select: Any) -> None:
    """Lets a select say which law the proposer measures (`measures = "filtered"`), where the spec does not."""
    (name, made), said = stages["propose"][0], {part.name: dict(part.params) for part in parsed.parts}
    if hasattr(select, "measures") and hasattr(made, "of") and "of" not in said.get(name, {}):
        stages["propose"][0] = name, replace(made, of=select.measures)


def _built(stages: _Stages) -> dict[str, Any]:
    """One object for a single stage, a tuple for the others."""
    made = {stage: tuple(method for _, method in named) for stage, named in stages.items()}
    return {stage: methods[0] if stage in SINGLE else methods for stage, methods in made.items()}
