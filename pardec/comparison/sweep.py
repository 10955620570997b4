"""Expands samplers into curves: each method at the settings of its quality parameter, and its reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.cards import Family, find
from pardec.samplers.spec import Part, Spec, format_value, parse

from ..drivers import DRIVERS
from .entries import SamplerLike


@dataclass(frozen=True, slots=True)
class Curve:
    """A method at several settings of one parameter.

    Attributes:
        name: the sampler as written.
        parameter: what is swept, as "threshold.tau"; None for a single point.
        samplers: a spec for each setting.
        reference: the curve that this one is judged against; None for a reference itself.
    """

    name: str
    parameter: str | None
    samplers: tuple[str, ...]
    reference: str | None = None


def curves(
    samplers: Sequence[SamplerLike], family: Family, *, sampling: bool = False, points: int | None = None
) -> list[Curve]:
    """The curve of each sampler, and of its reference if that is not among them.

    The first part of a spec with a quality parameter (`quality_grid`) that the spec leaves open is swept; without one,
    the `tau` of `threshold`, which a masked sampler selects by where it names no select. A preset stays one point: its
    other arguments belong to its setting. Masked models are judged against `threshold`, and `fixed` is always included;
    an acceptance is judged against its drafter alone, a sampler of vectors against `mar` with the same steps, one of
    token maps against `sequential`. With `points` a curve has at most this many settings, the strictest and the loosest
    among them; so do those that others are judged against, or they would have the finer choice.
    """
    by_name: dict[str, Curve] = {}
    for sampler in samplers:
        name = sampler if isinstance(sampler, str) else str(parse(sampler))
        spec = parse(registry.preset(name).spec if name.startswith("preset:") else sampler)
        references = DRIVERS[family].judged_against(spec)
        against = str(references[0]) if references and str(references[0]) != name else None
        if name.startswith("preset:"):
            by_name.setdefault(name, Curve(name, None, (name,), against))
        else:
            by_name.setdefault(str(spec), _curve(spec, family, against))
        for at, reference in enumerate(references):
            by_name.setdefault(str(reference), _curve(reference, family, against if at else None))
    resolved = [replace(curve, samplers=_distinct(curve.samplers, family, sampling)) for curve in by_name.values()]
    return [
        replace(curve, samplers=_spread(curve.samplers, points)) if points else curve
        for curve in resolved
        if curve.samplers
    ]


def settings(some: Iterable[Curve], family: Family, *, sampling: bool = False) -> tuple[str, ...]:
    """Every setting of all curves once; a setting that two curves share has the spec of the first."""
    return _distinct((sampler for curve in some for sampler in curve.samplers), family, sampling)


def _curve(spec: Spec, family: Family, reference: str | None) -> Curve:
    driver = DRIVERS[family]
    stages = {find(part.name, family).stage for part in spec.parts}
    open_ = not any(_grid(part, family) for part in spec.parts) and driver.main_stage not in stages
    if driver.swept is not None and open_:
        spec = replace(spec, parts=(*spec.parts, Part(driver.swept)))
        name = str(replace(spec, parts=spec.parts[:-1]))
    else:
        name = str(spec)
    for at, part in enumerate(spec.parts):
        for key, values in _grid(part, family).items():
            each = [replace(part, params=(*part.params, (key, format_value(value)))) for value in values]
            swept = [str(replace(spec, parts=(*spec.parts[:at], one, *spec.parts[at + 1 :]))) for one in each]
            return Curve(name, f"{part.name}.{key}", tuple(swept), reference)
    return Curve(name, None, (str(spec),), reference)


def _grid(part: Part, family: Family) -> Mapping[str, tuple[object, ...]]:
    """The quality parameter of a method with its values; empty without one, or if the spec sets it."""
    grid: Mapping[str, tuple[object, ...]] = find(part.name, family).make.quality_grid
    return {key: values for key, values in grid.items() if key not in dict(part.params)}


def _spread(samplers: tuple[str, ...], points: int) -> tuple[str, ...]:
    """At most `points` (2 or more) values, evenly spaced from the first to the last."""
    last, steps = len(samplers) - 1, points - 1
    return samplers if last <= steps else tuple(samplers[round(step * last / steps)] for step in range(points))


def _distinct(specs: Iterable[str], family: Family, sampling: bool) -> tuple[str, ...]:
    """The specs that resolve, each resolved spec once."""
    by_spec: dict[str, str] = {}
    for text in specs:
        with suppress(SpecError):  # a value that contradicts the others, such as a relaxed bound above its threshold
            by_spec.setdefault(str(registry.resolve(text, family, sampling=sampling).spec), text)
    return tuple(by_spec.values())
