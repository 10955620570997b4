"""Where every method is found by name: `@register(...)`, cards, and the turning of a spec into a sampler."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, TypeVar

from pardec.models.errors import SpecError, UnknownNameError, did_you_mean
from pardec.samplers.contracts import Checked, Sampler
from pardec.samplers.presets import PRESETS, Preset
from pardec.samplers.spec import Part, Spec, parse

STAGES = ("inputs", "logits", "propose", "select", "widen", "revise", "finish", "cache")
SINGLE = {"propose", "select", "cache"}
_FOLDERS = ("pardec.samplers.masked", "pardec.samplers.caches")
DEFAULT = "threshold+eos"

_T = TypeVar("_T", bound=type)
_methods: dict[str, Card] = {}


@dataclass(frozen=True, slots=True)
class Card:
    """What a method says of itself."""

    name: str
    stage: str
    family: str  # "masked": diffusion language models
    exact: str  # "greedy": changes nothing of what the family's `sequential` gives; "relaxed": it may
    summary: str
    paper: str
    parameters: tuple[Mapping[str, str], ...]  # name, type, default, doc
    file: str
    line: int
    make: type


def register(
    name: str, *, stage: str, paper: str = "", exact: str = "relaxed", family: str = "masked"
) -> Callable[[_T], _T]:
    """Class decorator: adds a frozen dataclass to the registry under `name`.

    Args:
        stage: one of `STAGES`.
        paper: "arXiv:<id>", which the class's module must name too; empty for a plain baseline.
        exact: "greedy" if the output stays what the family's `sequential` without a cache gives, else "relaxed".
    """

    def add(cls: _T) -> _T:
        if stage not in STAGES:
            raise SpecError(f"{name}: unknown stage {stage!r}", hint=f"stages are {', '.join(STAGES)}")
        known = _methods.get(name)
        if known and _path(known.make) != _path(cls):  # the same path is the same file loaded again
            raise SpecError(f"a sampler named {name!r} is registered already, by {known.file}:{known.line}")
        source, line = _source(cls)
        summary = (inspect.getdoc(inspect.getmodule(cls)) or inspect.getdoc(cls) or "").split("\n")[0]
        _methods[name] = Card(name, stage, family, exact, summary, paper, _parameters(cls), source, line, cls)
        return cls

    return add


@cache
def _load_all() -> None:
    """Imports every method file, and what other packages add through the entry-point group `pardec.samplers`."""
    for folder in _FOLDERS:
        package = importlib.import_module(folder)
        for module in pkgutil.iter_modules(package.__path__, folder + "."):
            importlib.import_module(module.name)
    for entry in importlib.metadata.entry_points(group="pardec.samplers"):
        try:
            entry.load()
        except Exception as error:
            raise SpecError(
                f"the sampler {entry.name!r} of another package ({entry.value}) does not load: {error}",
                hint="repair or uninstall that package",
            ) from error


def cards() -> list[Card]:
    """Every registered method, by stage and name."""
    _load_all()
    return sorted(_methods.values(), key=lambda card: (STAGES.index(card.stage), card.name))


def find(name: str) -> Card:
    """The card of one method.

    Raises:
        UnknownNameError: no such method; names the nearest.
    """
    _load_all()
    if name not in _methods:
        near = did_you_mean(name, _methods)
        raise UnknownNameError(f"unknown sampler {name!r}{near}", hint='run "pardec list samplers"')
    return _methods[name]


def presets() -> tuple[Preset, ...]:
    """Every preset: a complete spec with the generate arguments that its paper used."""
    return PRESETS


def preset(name: str) -> Preset:
    """The preset called `name`, with or without `preset:` before it."""
    known = {p.name: p for p in PRESETS}
    name = name.removeprefix("preset:")
    if name not in known:
        raise UnknownNameError(f"unknown preset {name!r}{did_you_mean(name, known)}", hint='run "pardec list presets"')
    return known[name]


def build(part: Part) -> Any:
    """The method a part names, with its parameters read by the types of its fields."""
    card = find(part.name)
    try:
        return _made(part, card)
    except SpecError as error:
        if error.hint:
            raise
        raise SpecError(error.message, hint=f'"pardec show {part.name}" explains its parameters') from None


def _made(part: Part, card: Card) -> Any:
    known = {f.name: f for f in fields(card.make)}
    hints = typing.get_type_hints(card.make)
    values = {}
    for key, text in part.params:
        if key not in known:
            allowed = f"it takes {', '.join(known)}" if known else "it takes no parameters"
            raise SpecError(f"{part.name}: unknown parameter {key!r}{did_you_mean(key, known)}", hint=allowed)
        values[key] = _read(text, hints[key], f"{part.name}:{key}")
    return card.make(**values)


def resolve(spec: str | Spec | Sampler | None) -> Sampler:
    """Turns a spec into the sampler that a loop runs; what it leaves open takes the defaults.

    A sampler that was put together elsewhere is taken as it is.

    >>> str(resolve("threshold@dual").spec)
    'confidence:of=raw+threshold:tau=0.9,fall=0.0@dual:refresh=0,reference=false'

    Raises:
        SpecError: an unknown or misspelt name or parameter, two parts where one is allowed, a cache without `@`.
    """
    if isinstance(spec, Sampler):
        return spec
    if isinstance(spec, str) and spec.startswith("preset:"):
        spec = preset(spec).spec
    parsed = parse(DEFAULT if spec is None else spec)
    stages = _by_stage(parsed)
    brought = [made.brings for named in stages.values() for _, made in named if hasattr(made, "brings")]
    _add_default(stages, "select", brought[0] if brought else "threshold")
    select = stages["select"][0][1]
    _add_default(stages, "propose", getattr(select, "prefers", "confidence"))
    _measure(parsed, stages, select)
    _add_default(stages, "cache", "none")
    _refuse_doubles(parsed, stages)
    order = [named for stage in STAGES for named in stages[stage]]
    full = [_full(name, made) for name, made in order]
    sampler = Sampler(
        spec=Spec(tuple(full[:-1]), full[-1]),  # the cache is the last stage, and there is one
        exact="greedy" if all(_exact(name, made) == "greedy" for name, made in order) else "relaxed",
        **_built(stages),
    )
    for _, made in order:
        if isinstance(made, Checked):
            made.check(sampler)
    return sampler


_Stages = dict[str, list[tuple[str, Any]]]  # stage -> (name, method) in the order written


def _by_stage(parsed: Spec) -> _Stages:
    stages: _Stages = {stage: [] for stage in STAGES}
    for part in parsed.parts:
        stage = find(part.name).stage
        if stage == "cache":
            raise SpecError(f"{part.name!r} is a cache and follows '@'", hint=f"write ...@{part}")
        stages[stage].append((part.name, build(part)))
    if parsed.cache is not None:
        name, stage = parsed.cache.name, find(parsed.cache.name).stage
        if stage != "cache":
            raise SpecError(f"{name!r} after '@' is no cache but a {stage} stage", hint="join it with '+' instead")
        stages["cache"].append((name, build(parsed.cache)))
    return stages


def _add_default(stages: _Stages, stage: str, text: str) -> None:
    if not stages[stage]:
        (part,) = parse(text).parts
        stages[stage].append((part.name, build(part)))


def _measure(parsed: Spec, stages: _Stages, select: Any) -> None:
    """Lets a select say which law the proposer measures (`measures = "filtered"`), where the spec does not."""
    (name, made), said = stages["propose"][0], {part.name: dict(part.params) for part in parsed.parts}
    if hasattr(select, "measures") and hasattr(made, "of") and "of" not in said.get(name, {}):
        stages["propose"][0] = name, replace(made, of=select.measures)


def _built(stages: _Stages) -> dict[str, Any]:
    """One object for a single stage, a tuple for the others."""
    made = {stage: tuple(method for _, method in named) for stage, named in stages.items()}
    return {stage: methods[0] if stage in SINGLE else methods for stage, methods in made.items()}


def _refuse_doubles(parsed: Spec, stages: _Stages) -> None:
    for stage, named in stages.items():
        names = [name for name, _ in named]
        if stage in SINGLE and len(names) > 1:
            raise SpecError(
                f"{str(parsed)!r} names {len(names)} {stage} policies ({', '.join(names)}), one is allowed",
                hint=f'keep one; "pardec list samplers --stage {stage}" shows the choices',
            )
        if len(set(names)) < len(names):
            raise SpecError(f"{str(parsed)!r} names {max(names, key=names.count)!r} twice", hint="keep one of them")


def _exact(name: str, made: Any) -> str:
    """What the method says of itself with its parameters, else its card's word."""
    return str(getattr(made, "exact", find(name).exact))


def _full(name: str, made: Any) -> Part:
    return Part(name, tuple((f.name, _write(getattr(made, f.name))) for f in fields(made)))


def _write(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _read(text: str, kind: Any, where: str) -> Any:
    """A value by its field's type: bool, int, float, str, a Literal, or one of these or None."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if text.lower() == "none" else _read(text, options[0], where)
    if origin is Literal:
        choices = typing.get_args(kind)
        if text not in choices:
            raise SpecError(f"{where} is one of {', '.join(choices)}, got {text!r}{did_you_mean(text, choices)}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SpecError(f"{where} is true or false, got {text!r}")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        what = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise SpecError(f"{where} is {what}, got {text!r}") from None


def _path(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _source(cls: type) -> tuple[str, int]:
    """File and line of a class; a class typed at a prompt has neither."""
    try:
        return inspect.getsourcefile(cls) or "<unknown>", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "<unknown>", 0


def _text(cls: type) -> list[str]:
    try:
        return inspect.getsource(cls).split("\n")
    except (OSError, TypeError):
        return []


def _parameters(cls: type) -> tuple[Mapping[str, str], ...]:
    """Name, type, default and the comment behind each field, as the source has it."""
    lines = [line for base in cls.__mro__[:-1] for line in _text(base)]

    def describe(field: Field[Any]) -> Mapping[str, str]:
        line = next((line for line in lines if line.strip().startswith(f"{field.name}:")), "")
        default = "" if field.default is MISSING else _write(field.default)
        doc = line.partition("  # ")[2].strip()
        kind = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
        return {"name": field.name, "type": kind, "default": default, "doc": doc}

    # @dataclass runs before @register, so the fields are there.
    return tuple(describe(field) for field in fields(cls))
