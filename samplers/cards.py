"""The card of every method: `@register(...)` writes it, and methods are found by it."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, Literal, TypeVar

from pardec.models.errors import SpecError, UnknownNameError, did_you_mean

Family = Literal["masked", "ar", "continuous"]
MASKED = ("inputs", "logits", "propose", "select", "widen", "revise", "finish", "cache")
AUTOREGRESSIVE = ("draft", "shape", "length", "accept")
CONTINUOUS = ("vectors",)
STAGES = (*MASKED, *AUTOREGRESSIVE, *CONTINUOUS)
_FOLDERS = (
    "pardec.samplers.masked",
    "pardec.samplers.caches",
    "pardec.samplers.drafts",
    "pardec.samplers.shapes",
    "pardec.samplers.lengths",
    "pardec.samplers.acceptance",
    "pardec.samplers.continuous",
)

OF: Mapping[str, str] = {
    "masked": "masked models",
    "ar": "autoregressive models",
    "continuous": "models whose tokens are vectors",
}

CHECKS: Mapping[str, str] = {
    "golden": "outputs recorded from the authors' own code (tests/golden) come out again",
    "reference": "a plain version written from the paper, apart from the package, gives the same",
    "joint": "what is drawn follows the joint law of a small model, enumerated",
    "hand": "cases worked out by hand, identities and limits",
}

_T = TypeVar("_T", bound=type)
_methods: dict[tuple[str, str], Card] = {}  # by name and family: each family has its own `sequential`


@dataclass(frozen=True, slots=True)
class Card:
    """What a method says of itself."""

    name: str
    stage: str
    family: Family  # "masked": diffusion language models; "ar": autoregressive; "continuous": tokens are vectors
    exact: (
        str  # of what the family's `sequential` gives it keeps the tokens ("greedy"), the law, or not all ("relaxed")
    )
    summary: str
    paper: str
    parameters: tuple[Mapping[str, str], ...]  # name, type, default, doc
    file: str
    line: int
    make: type
    checked: tuple[str, ...] = ()  # what its tests compare it with; see `CHECKS`


def register(
    name: str, *, stage: str, paper: str = "", exact: str = "relaxed", checked: str = ""
) -> Callable[[_T], _T]:
    """Class decorator: adds a frozen dataclass to the registry under `name`.

    Args:
        stage: one of `STAGES`, which says the family too.
        paper: "arXiv:<id>", which the class's module must name too; empty for a plain baseline.
        exact: "greedy" if the output stays what the family's `sequential` gives; "distribution" if it is drawn from
            the same law; else "relaxed". A method's own attribute `exact`, where it has one, goes before.
        checked: the words of `CHECKS` that are true of it, "golden" as "golden/<set>" for each recorded set.
    """

    def add(cls: _T) -> _T:
        if stage not in STAGES:
            raise SpecError(f"{name}: unknown stage {stage!r}", hint=f"stages are {', '.join(STAGES)}")
        family = family_of(stage)
        known = _methods.get((name, family))
        if known and _path(known.make) != _path(cls):  # the same path is the same file loaded again
            raise SpecError(f"a sampler named {name!r} is registered already, by {known.file}:{known.line}")
        words = tuple(checked.split())
        for word in words:
            if word.partition("/")[0] not in CHECKS:
                raise SpecError(f"{name}: checked={word!r} is no kind of check", hint=f"kinds are {', '.join(CHECKS)}")
        source, line = _source(cls)
        summary = (inspect.getdoc(inspect.getmodule(cls)) or inspect.getdoc(cls) or "").split("\n")[0]
        parameters = _parameters(cls)
        _methods[name, family] = Card(name, stage, family, exact, summary, paper, parameters, source, line, cls, words)
        return cls

    return add


def family_of(stage: str) -> Family:
    """The family of models that a stage belongs to."""
    return "ar" if stage in AUTOREGRESSIVE else "continuous" if stage in CONTINUOUS else "masked"


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


def find(name: str, family: str | None = None) -> Card:
    """The card of one method; of the masked one where several families have it and none is asked for.

    Raises:
        UnknownNameError: no such method; names the nearest.
        SpecError: there is one, but for another family.
    """
    found = named(name)
    for card in found:
        if card.family == (family or card.family):
            return card
    raise SpecError(
        f"{name!r} is for {OF[found[0].family]}, and this is for {OF[str(family)]}",
        hint=f'"pardec list samplers --family {family}" shows what can be used here',
    )


def named(name: str) -> list[Card]:
    """The cards of every method of this name, one a family; UnknownNameError names the nearest if there is none."""
    _load_all()
    found = [card for card in _methods.values() if card.name == name]
    if not found:
        known = [known for known, _ in _methods]
        raise UnknownNameError(
            f"unknown sampler {name!r}{did_you_mean(name, known)}", hint='run "pardec list samplers"'
        )
    return sorted(found, key=lambda card: STAGES.index(card.stage))


def written(value: Any) -> str:
    """A parameter as specs write it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


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
        default = "" if field.default is MISSING else written(field.default)
        doc = line.partition("  # ")[2].strip()
        kind = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
        return {"name": field.name, "type": kind, "default": default, "doc": doc}

    # @dataclass runs before @register, so the fields are there.
    return tuple(describe(field) for field in fields(cls))
