"""The cards of methods: `@register(...)` writes a method's card, and `find` looks it up by name."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from importlib.machinery import PathFinder
from typing import Any, Literal, TypeVar, dataclass_transform

from pardec.models.errors import SpecError, UnknownNameError, did_you_mean, one_line

from .outline import Unreadable, annotation, explanation, outlines, paper_of
from .renamed import refuse_former_names
from .spec import Policy, format_value

Family = Literal["masked", "ar", "continuous", "scales"]
MASKED = ("block", "branch", "query", "inputs", "logits", "propose", "select", "widen", "revise", "finish", "cache")
AUTOREGRESSIVE = ("draft", "shape", "length", "logits", "accept", "cache", "texts")
CONTINUOUS = ("vectors",)
SCALES = ("maps",)
SINGLE = frozenset(
    {"block", "branch", "query", "propose", "select", "cache", "draft", "shape", "length", "accept", "texts"}
)  # stages with at most one method
STAGES = tuple(dict.fromkeys((*MASKED, *AUTOREGRESSIVE, *CONTINUOUS, *SCALES)))
STAGES_OF: Mapping[Family, tuple[str, ...]] = {
    "masked": MASKED,
    "ar": AUTOREGRESSIVE,
    "continuous": CONTINUOUS,
    "scales": SCALES,
}
# The folders of methods, with the family and stage of each.
_HOMES: Mapping[str, tuple[Family, str]] = {
    **{f"pardec.samplers.masked.{stage}": ("masked", stage) for stage in MASKED},
    **{f"pardec.samplers.speculative.{stage}": ("ar", stage) for stage in AUTOREGRESSIVE},
    "pardec.samplers.continuous.methods": ("continuous", "vectors"),
    "pardec.samplers.scales.methods": ("scales", "maps"),
}

FAMILY_LABELS: Mapping[str, str] = {
    "masked": "masked models",
    "ar": "autoregressive models",
    "continuous": "models whose tokens are vectors",
    "scales": "models that predict token maps scale by scale",
}

CHECKS: Mapping[str, str] = {
    "golden": "reproduces outputs recorded from the authors' own code (tests/golden)",
    "reference": "agrees with an independent plain implementation of the paper in the tests",
    "joint": "samples follow the enumerated joint distribution of a small model",
    "hand": "cases worked out by hand, identities and limits",
}

_T = TypeVar("_T", bound=type)
_Key = tuple[str, str]  # name and family: each family has its own `sequential`
_methods: dict[_Key, Card] = {}
_paths: dict[_Key, tuple[str, str]] = {}  # module and name of each class
_broken: dict[str, str] = {}  # files and packages that are left out -> the reason
_classes: dict[_Key, type[Any]] = {}  # classes whose file has been imported


@dataclass(frozen=True, slots=True)
class Card:
    """The description of one method.

    Attributes:
        family: "masked": diffusion language models; "ar": autoregressive; "continuous": tokens are vectors;
            "scales": token maps, coarse to fine.
        exact: compared with the family's `sequential`: "greedy" keeps its tokens, "distribution" the distribution they
            are drawn from, "relaxed" neither.
        parameters: name, type, default and doc of each.
        checked: what its tests compare it with; see `CHECKS`.
        references: the plain versions among these, each "module.function" of a file below tests/.
    """

    name: str
    stage: str
    family: Family
    exact: str
    summary: str
    paper: str
    parameters: tuple[Mapping[str, str], ...]
    file: str
    line: int
    checked: tuple[str, ...] = ()
    references: tuple[str, ...] = ()

    @property
    def make(self) -> Any:
        """The method's class; the first access imports its file, and torch with it."""
        key = self.name, self.family
        if key not in _classes:
            try:
                importlib.import_module(_paths[key][0])
            except Exception as error:
                raise SpecError(
                    f"the sampler {self.name!r} cannot be imported: {type(error).__name__}: {one_line(error)}",
                    hint=f"see {self.file}",
                ) from error
        return _classes[key]

    @property
    def usable(self) -> bool:
        """Whether the method's file can be imported; warns if it cannot."""
        try:
            return bool(self.make)
        except SpecError as error:
            _leave_out(self.file, f"{error.message}; it is left out")
            return False

    @property
    def explanation(self) -> str:
        """The docstring of the method's file: the rule, where it deviates, and whether it is exact."""
        return explanation(self.file) or self.summary


@dataclass_transform(frozen_default=True)
def register(
    name: str,
    *,
    stage: str | None = None,
    family: Family | None = None,
    paper: str | None = None,
    exact: str = "relaxed",
    checked: str = "",
) -> Callable[[_T], _T]:
    """Class decorator: makes a class a frozen dataclass, and adds it to the registry under `name`.

    Args:
        stage: one of `STAGES`; None, in pardec's own folders of methods: that of the folder, and so is the family.
        family: of the models; None: the first that has the stage, which for "logits" and "cache" is "masked".
        paper: "arXiv:<id>", or the address of a page; None: the first one on arXiv in the docstring of the file.
        exact: "greedy" if the output is that of the family's `sequential`; "distribution" if it is drawn from the same
            distribution; else "relaxed". A method's own attribute `exact`, where it has one, takes precedence.
        checked: the words of `CHECKS` that apply, "golden" as "golden/<set>" for each recorded set, and "reference" as
            "reference:module.function" for each plain version, a function or class of tests/module.py.
    """

    def add(cls: _T) -> _T:
        if "__dataclass_fields__" not in vars(cls):
            dataclass(frozen=True)(cls)
        of_family, of_stage = (family, stage) if stage is not None else _home(name, cls.__module__)
        if of_stage in STAGES:  # `_add` refuses others
            refuse_former_names(cls, name, family=of_family or stage_family(of_stage), stage=of_stage)
        source, line = _source(cls)
        doc = inspect.getdoc(inspect.getmodule(cls)) or inspect.getdoc(cls) or ""
        key = _add(
            name,
            (cls.__module__, cls.__qualname__),
            stage=of_stage,
            family=of_family,
            paper=paper_of(doc) if paper is None else paper,
            exact=exact,
            checked=checked,
            summary=doc.split("\n")[0],
            parameters=_parameters(cls),
            file=source,
            line=line,
        )
        _classes[key] = cls
        cls.registered = name, of_stage  # type: ignore[attr-defined]  # how specs name its objects
        _complete(cls, of_stage, key[1])
        return cls

    return add


def _home(name: str, module: str) -> tuple[Family, str]:
    """The family and stage of the methods in a module's folder. Raises SpecError for other folders."""
    folder = module.rpartition(".")[0]
    if folder not in _HOMES:
        raise SpecError(f"{name}: stage is missing", hint=f"stages are {', '.join(STAGES)}")
    return _HOMES[folder]


def _complete(cls: type[Any], stage: str, family: str) -> None:
    """Adds the defaults of a stage's base class to a class that does not derive from it."""
    base = Policy
    if family == "masked":
        base = getattr(importlib.import_module("pardec.samplers.masked.contracts"), stage.capitalize())
    if not issubclass(cls, base):
        known = {*dir(cls), *(field.name for field in fields(cls))}
        for name in dir(base):
            if name not in known:
                setattr(cls, name, inspect.getattr_static(base, name))


def _add(
    name: str,
    path: tuple[str, str],
    *,
    stage: str,
    family: Family | None = None,
    paper: str = "",
    exact: str = "relaxed",
    checked: str = "",
    **rest: Any,
) -> _Key:
    """Writes one card. Raises SpecError for an unknown stage or kind of check, or a name that another class has."""
    known_stages = STAGES if family is None else STAGES_OF[family]
    if stage not in known_stages:
        of = "" if family is None else f" of {FAMILY_LABELS[family]}"
        raise SpecError(f"{name}: unknown stage {stage!r}{of}", hint=f"stages are {', '.join(known_stages)}")
    key = name, family or stage_family(stage)
    known = _methods.get(key)
    if known and _paths[key] != path:  # the same path is the same file loaded again
        raise SpecError(f"a sampler named {name!r} is registered already, by {known.file}:{known.line}")
    words, references = list[str](), list[str]()
    for word in checked.split():
        if word.startswith("reference:"):
            word, _, function = word.partition(":")
            references.append(function)
        if word.partition("/")[0] not in CHECKS:
            raise SpecError(
                f"{name}: checked={word!r} is an unknown kind of check", hint=f"kinds are {', '.join(CHECKS)}"
            )
        words.append(word)
    checks = tuple(dict.fromkeys(words))  # "reference" once, however many there are
    _methods[key] = Card(name, stage, key[1], exact, paper=paper, checked=checks, references=tuple(references), **rest)
    _paths[key] = path
    return key


def stage_family(stage: str) -> Family:
    """The first family of models that has this stage."""
    return next(family for family, stages in STAGES_OF.items() if stage in stages)


def order(card: Card) -> tuple[int, int, str]:
    """Sorts cards by family, stage and name."""
    return tuple(STAGES_OF).index(card.family), STAGES_OF[card.family].index(card.stage), card.name


@cache
def _load_all() -> None:
    """Reads every method's file and imports methods of other packages."""
    for modules in _modules().values():
        for module in modules:
            _load(module)
    for entry in _of_other_packages():
        try:
            entry.load()
        except Exception as error:
            text = f"the sampler {entry.name!r} of another package ({entry.value}) does not load, and is left out"
            _leave_out(entry.name, f"{text}: {type(error).__name__}: {one_line(error)}")


def _load_named(name: str) -> None:
    """Reads the methods called `name`, whose files are NAME.py; all methods where other packages may have this one."""
    if _of_other_packages():
        _load_all()
    for module in _modules().get(name, ()):
        _load(module)


@cache
def _of_other_packages() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group="pardec.samplers")


@cache
def _locations() -> dict[str, list[str]]:
    """The places on disk of each folder of methods."""
    specs = {folder: importlib.util.find_spec(folder) for folder in _HOMES}
    return {folder: list(spec.submodule_search_locations or ()) for folder, spec in specs.items() if spec}


@cache
def _modules() -> dict[str, list[str]]:
    """The modules of each name in the folders of methods."""
    modules: dict[str, list[str]] = {}
    for folder, locations in _locations().items():
        for found in pkgutil.iter_modules(locations):
            modules.setdefault(found.name, []).append(f"{folder}.{found.name}")
    return modules


@cache
def _load(module: str) -> None:
    """Adds the cards of one file. A file that cannot be read, such as one being edited, is left out with a warning."""
    file = f"{module.removeprefix('pardec.').replace('.', '/')}.py"
    if module in sys.modules or file in _broken:
        return
    try:
        _read(module, PathFinder.find_spec(module, _locations()[module.rpartition(".")[0]]))
    except Exception as error:
        _leave_out(file, f"{file} cannot be read, and is left out: {type(error).__name__}: {one_line(error)}")


def _leave_out(name: str, reason: str) -> None:
    """Warns of a file of methods that cannot be used; its methods are not registered."""
    _broken[name] = reason
    warnings.warn(reason, stacklevel=3)


def _read(module: str, spec: Any) -> None:
    """Reads the cards of one file from its text, or imports it if the text is not enough."""
    try:
        infos = list(outlines(module, spec.origin))
    except Unreadable:
        importlib.import_module(module)
        return
    for one in infos:
        home: dict[str, Any] = {}
        if "stage" not in one.keywords:
            home["family"], home["stage"] = _home(one.name, module)
        parameters = tuple(
            {**field, "default": format_value(field["default"]) if "default" in field else ""}
            for field in one.parameters
        )
        _add(
            one.name,
            (one.module, one.qualname),
            **{"paper": one.paper, **home, **one.keywords},
            summary=one.summary,
            parameters=parameters,
            file=one.file,
            line=one.line,
        )


def cards() -> list[Card]:
    """Every registered method, by stage and name."""
    _load_all()
    return sorted(_methods.values(), key=order)


def find(name: str, family: str | None = None) -> Card:
    """The card of one method; if several families have the name and `family` is None, the masked one.

    Raises:
        UnknownNameError: no such method; names the nearest.
        SpecError: there is one, but for another family.
    """
    candidates = cards_named(name)
    for card in candidates:
        if card.family == (family or card.family):
            return card
    raise SpecError(
        f"{name!r} is for {FAMILY_LABELS[candidates[0].family]}, not for {FAMILY_LABELS[str(family)]}",
        hint=f'"pardec list samplers --family {family}" shows the samplers for them',
    )


def name_of(stage: object) -> str:
    """The registered name of a method's object; its type's name if it is not registered."""
    name, _ = getattr(type(stage), "registered", (type(stage).__name__, None))
    return str(name)


def cards_named(name: str) -> list[Card]:
    """The cards of every method of this name, one per family; UnknownNameError names the nearest if there is none."""
    _load_named(name)
    matches = [_methods[key] for family in STAGES_OF if (key := (name, family)) in _methods]
    if not matches:
        _load_all()
        known = [known for known, _ in _methods]
        raise UnknownNameError(
            f"unknown sampler {name!r}{did_you_mean(name, known)}",
            hint="; ".join(_broken.values()) or 'run "pardec list samplers"',
        )
    return sorted(matches, key=order)


def _source(cls: type) -> tuple[str, int]:
    """File and line of a class; a class typed at a prompt has neither."""
    try:
        return inspect.getsourcefile(cls) or "<unknown>", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "<unknown>", 0


def _parameters(cls: type) -> tuple[Mapping[str, str], ...]:
    """Name, type, default and the description of each field: `tau: Annotated[float, "least probability"] = 0.9`."""

    def describe(field: Field[Any]) -> Mapping[str, str]:
        kind = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
        kind, doc = annotation(ast.parse(kind, mode="eval").body)
        if field.default is MISSING and field.init:
            raise SpecError(
                f"{cls.__name__}: the parameter {field.name} has no default", "every parameter of a method has one"
            )
        default = "" if field.default is MISSING else format_value(field.default)
        return {"name": field.name, "type": kind, "default": default, "doc": doc}

    return tuple(describe(field) for field in fields(cls))
