"""Finds every method by name, and turns a spec into the sampler that a loop runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from pardec.models.errors import SpecError

from .cards import (
    AUTOREGRESSIVE,
    CONTINUOUS,
    FAMILY_LABELS,
    MASKED,
    SCALES,
    STAGES,
    Card,
    Family,
    cards,
    cards_named,
    find,
    register,
)
from .continuous import contracts as continuous
from .continuous.contracts import ContinuousSampler
from .masked import compatibility as masked
from .masked.contracts import MaskedSampler
from .presets import preset, presets
from .scales import contracts as scales
from .scales.contracts import ScaleSampler
from .spec import Part, Policy, Spec, format_value, parse
from .spec_values import build_method, family_of
from .speculative import compatibility as speculative
from .speculative.contracts import SpeculativeSampler

__all__ = [
    "AUTOREGRESSIVE",
    "CONTINUOUS",
    "DEFAULT",
    "FAMILY_LABELS",
    "MASKED",
    "SCALES",
    "STAGES",
    "Card",
    "Policy",
    "build_method",
    "cards",
    "cards_named",
    "family_of_sampler",
    "find",
    "parse",
    "preset",
    "presets",
    "register",
    "resolve",
    "sampler",
]  # fmt: skip

DEFAULT: dict[Family, str] = {
    "masked": "threshold+eos",
    "ar": "sequential",
    "continuous": "mar",
    "scales": "sequential",
}


def sampler(name: str, **parameters: Any) -> Spec:
    """One method as a `Spec`, for `sampler=` arguments; `|` joins it with others.

    >>> str(sampler("credit") | sampler("threshold", tau=0.8) | sampler("dual", refresh=8))
    'credit+threshold:tau=0.8@dual:refresh=8'

    Raises:
        SpecError: an unknown name, or a parameter that the method does not take.
    """
    if not isinstance(name, str):
        raise SpecError(
            f"a method must be named by a string, got {type(name).__name__}", hint='sampler("threshold", tau=0.8)'
        )
    part = Part(name, tuple((key, format_value(value)) for key, value in parameters.items()))
    family = family_of(Spec((part,)))
    build_method(part, family)
    return Spec((), part) if find(name, family).stage == "cache" else Spec((part,))


Resolved = MaskedSampler | SpeculativeSampler | ContinuousSampler | ScaleSampler
_FAMILY_OF: dict[type[Resolved], Family] = {
    MaskedSampler: "masked",
    SpeculativeSampler: "ar",
    ContinuousSampler: "continuous",
    ScaleSampler: "scales",
}
_BUILD: dict[Family, Callable[..., Resolved]] = {
    "masked": masked.build,
    "ar": speculative.build,
    "continuous": continuous.build,
    "scales": scales.build,
}


def family_of_sampler(sampler: Resolved) -> Family:
    """The family of models that a resolved sampler is for."""
    return _FAMILY_OF[type(sampler)]


@overload
def resolve(spec: str | Spec | Policy | Resolved | None, family: Literal["masked"] = ...) -> MaskedSampler: ...
@overload
def resolve(
    spec: str | Spec | Policy | Resolved | None, family: Literal["ar"], *, sampling: bool = ...
) -> SpeculativeSampler: ...
@overload
def resolve(spec: str | Spec | Policy | Resolved | None, family: Literal["continuous"]) -> ContinuousSampler: ...
@overload
def resolve(spec: str | Spec | Policy | Resolved | None, family: Literal["scales"]) -> ScaleSampler: ...
@overload
def resolve(
    spec: str | Spec | Policy | Resolved | None, family: Family | None, *, sampling: bool = ...
) -> Resolved: ...
def resolve(
    spec: str | Spec | Policy | Resolved | None, family: Family | None = None, *, sampling: bool = False
) -> Resolved:
    """Turns a spec into the sampler that a loop runs, with defaults for stages that it does not name.

    A sampler that is resolved already is returned as it is.

    >>> str(resolve("threshold@dual").spec)
    'confidence:of=raw+threshold:tau=0.9,fall=0.0,relax=0.0@dual:refresh=0,reference=false'

    Args:
        family: of the model; None derives it from the names ("masked" where several have them, as `sequential`).
        sampling: whether the temperature is above 0, which decides on the acceptance where none is named.

    Raises:
        SpecError: an unknown or misspelt name or parameter, two parts where one is allowed, a cache without `@`, names
            of another family.
    """
    if isinstance(spec, Resolved):
        own = family_of_sampler(spec)
        if family not in (None, own):
            raise SpecError(
                f"{spec.spec} is for {FAMILY_LABELS[own]}, not for {FAMILY_LABELS[str(family)]}",
                hint="resolve a spec of this family",
            )
        return spec
    if isinstance(spec, str) and spec.startswith("preset:"):
        spec = preset(spec).spec
    parsed = parse(DEFAULT[family or "masked"] if spec is None else spec)
    return _BUILD[family or family_of(parsed)](parsed, sampling=sampling)
