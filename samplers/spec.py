"""Spec strings such as `credit+threshold:tau=0.9@dual:refresh=8`, in Python, on the command line and in results.

    spec := part ("+" part)* ("@" part)?        part := name (":" key "=" value ("," key "=" value)*)?

A value that contains one of `+ @ , : = "` or white space is double-quoted, with `\\"` and `\\\\` inside.

Objects of methods are joined by `|`: `Credit() | Threshold(tau=0.9) | Dual(refresh=8)` is the `Spec` of that string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from pardec.models.errors import SpecError

from .limits import MOST_PARTS
from .traits import NONE, Reasons, Trait

if TYPE_CHECKING:
    from .request import Request

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BARE = re.compile(r'[^+@,:="\s]+')
_TOKEN = re.compile(r'\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^+@,:="\s]+)|(?P<mark>[+@,:=]))\s*', re.DOTALL)


ModelName = str  # type of a parameter that names a model: embedded, a folder, or a hub id
DraftModuleName = str  # type of a parameter that names a draft module


@dataclass(frozen=True, slots=True)
class Part:
    """One method name with its parameters as written: values are still text."""

    name: str
    params: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        params = ",".join(f"{key}={_quote(value)}" for key, value in self.params)
        return f"{self.name}:{params}" if params else self.name


@dataclass(frozen=True, slots=True)
class Spec:
    """Stages in the order written, and the cache after `@`. `parse(str(spec)) == spec`."""

    parts: tuple[Part, ...]
    cache: Part | None = None

    def __str__(self) -> str:
        stages = "+".join(map(str, self.parts))
        return stages if self.cache is None else f"{stages}@{self.cache}"

    def __or__(self, other: Spec | Policy) -> Spec:
        """Joins two specs: the stages in the order written, and the cache of the spec that has one."""
        more = spec_of(other)
        if self.cache is not None and more.cache is not None:
            raise SpecError(
                f"{self.cache.name!r} and {more.cache.name!r} are two caches, one is allowed", hint="keep one"
            )
        return Spec(self.parts + more.parts, self.cache or more.cache)

    def __ror__(self, other: object) -> Spec:
        return spec_of(other) | self

    @property
    def every(self) -> tuple[Part, ...]:
        """All parts, the cache last."""
        return self.parts if self.cache is None else (*self.parts, self.cache)

    @property
    def slug(self) -> str:
        """The spec as a file name: letters, digits, `.`, `_` and `-` only."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", str(self)).strip("-")


class Policy:
    """A registered method as an object: `|` joins it to others, which gives a `Spec`.

    A parameter that is left at its default is not written, as in a spec string that does not name it.
    """

    registered: ClassVar[tuple[str, str]]  # name and stage, by `register`
    tuning_grid: ClassVar[Mapping[str, tuple[object, ...]]] = {}  # values of parameters that `pardec tune` tries
    quality_grid: ClassVar[Mapping[str, tuple[object, ...]]] = {}  # one parameter, swept from strict to loose
    uses_answer: ClassVar[bool] = False  # it reads the finished answer; `pardec tune` leaves it out

    @property
    def provides(self) -> frozenset[Trait]:
        """The traits that decide which other stages, models and requests it works with, given its parameters."""
        return NONE

    @property
    def requires(self) -> Reasons:
        """The traits that another stage or the model must have, and the error if none has."""
        return {}

    @property
    def conflicts(self) -> Reasons:
        """The traits of other stages, models and requests that it conflicts with, and the error."""
        return {}

    @property
    def traits(self) -> frozenset[Trait]:
        """`provides`, and the traits that follow from the methods that the class defines."""
        return self.provides

    @property
    def spec(self) -> Spec:
        """The spec of this method alone."""
        return spec_of(self)

    @property
    def exact(self) -> str | None:
        """The exactness of the method, given its parameters (see `register`); None: the exactness on its card."""
        return None

    def require(self, *names: str, least: float | None = None, most: float | None = None, hint: str = "") -> None:
        """Raises SpecError if a parameter is out of range; None is always accepted."""
        for name in names:
            value = getattr(self, name)
            if value is None or ((least is None or value >= least) and (most is None or value <= most)):
                continue
            bound = f"at least {least}" if most is None else f"at most {most:g}"
            rule = f"be {bound}" if least is None or most is None else f"lie in [{least}, {most}]"
            raise SpecError(f"{self.registered[0]}: {name} must {rule}, got {value}", hint)

    def undefined(self, method: str) -> SpecError:
        """The error for a method of the stage that a class has to define and does not."""
        return SpecError(
            f"the class {type(self).__name__} does not define {method}",
            "the base class of its stage says what it gets and returns: contracts.py of the loop",
        )

    def check(self, sampler: Any) -> None:
        """Raises SpecError for invalid parameters when a spec is resolved; combinations are checked by traits."""

    def admit(self, request: Request, sampler: Any) -> None:
        """Raises SpecError before the first forward if it cannot decode `request` as a stage of `sampler`."""

    def __or__(self, other: Spec | Policy) -> Spec:
        return self.spec | other

    def __ror__(self, other: object) -> Spec:
        return spec_of(other) | self.spec


def spec_of(method: Any) -> Spec:
    """The spec of a registered method, whether or not its class is a `Policy`; a `Spec` is returned unchanged.
    Raises SpecError for anything else.
    """
    if isinstance(method, Spec):
        return method
    if "registered" not in vars(type(method)):
        raise SpecError(
            f"a sampler must be a spec string, got {type(method).__name__}",
            hint='write it like "threshold:tau=0.9@dual", or with objects of registered classes: Threshold() | Dual()',
        )
    name, stage = type(method).registered
    values = [(f.name, getattr(method, f.name), f.default) for f in fields(method)]
    params = ((key, format_value(value)) for key, value, default in values if default is MISSING or value != default)
    part = Part(name, tuple(params))
    return Spec((), part) if stage == "cache" else Spec((part,))


def format_value(value: Any) -> str:
    """A parameter's value as specs write it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def parse(text: str | Spec | Policy) -> Spec:
    """Reads a spec string; a `Spec` or a method is accepted too.

    >>> parse("threshold:tau=0.9@dual").cache
    Part(name='dual', params=())

    Raises:
        SpecError: it is no spec, and why.
    """
    if not isinstance(text, str):
        spec = spec_of(text)
        if not spec.parts:
            raise SpecError(
                f"{spec.cache} is a cache and needs a sampler before '@'",
                hint=f'write it like "threshold@{spec.cache}"',
            )
        return spec
    tokens = _Tokens(text)
    parts = [_part(tokens)]
    while tokens.accept("+"):
        if len(parts) == MOST_PARTS:
            raise SpecError(f"the sampler has more than {MOST_PARTS} parts", hint=_GRAMMAR)
        parts.append(_part(tokens))
    cache = _part(tokens) if tokens.accept("@") else None
    if tokens.left:
        actual = tokens.left[0][1]
        reason = "one cache may follow '@', at the end" if cache else "expected '+', '@' or the end"
        raise SpecError(f"unexpected {actual!r} in sampler {text!r}: {reason}", hint=_GRAMMAR)
    return Spec(tuple(parts), cache)


_GRAMMAR = 'the form is name:key=value,key=value+name@cache, for example "threshold:tau=0.9@dual"'


class _Tokens:
    """The tokens of one spec string, consumed from the left."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.left: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise SpecError(f"cannot read sampler {text!r} from {text[at:]!r} on", hint=_GRAMMAR)
            kind = str(match.lastgroup)
            self.left.append((kind, match.group(kind)))
            at = match.end()

    def accept(self, mark: str) -> bool:
        if self.left and self.left[0] == ("mark", mark):
            self.left.pop(0)
            return True
        return False

    def word(self, what: str, *, quoted: bool = False) -> str:
        if self.left:
            kind, text = self.left[0]
            if kind == "bare" and (quoted or _NAME.fullmatch(text)):
                self.left.pop(0)
                return text
            if kind == "quoted" and quoted:
                self.left.pop(0)
                return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
        actual = repr(self.left[0][1]) if self.left else "nothing"
        raise SpecError(f"expected {what} in sampler {self.text!r}, got {actual}", hint=_GRAMMAR)


def _part(tokens: _Tokens) -> Part:
    name = tokens.word("a name")
    params: list[tuple[str, str]] = []
    if tokens.accept(":"):
        while True:
            key = tokens.word(f"a parameter name of {name!r}")
            if not tokens.accept("="):
                raise SpecError(f"expected '=' after {name}:{key} in sampler {tokens.text!r}", hint=_GRAMMAR)
            if len(params) == MOST_PARTS:
                raise SpecError(f"{name} has more than {MOST_PARTS} parameters", hint=_GRAMMAR)
            if key in dict(params):
                raise SpecError(f"{name}: parameter {key!r} is given twice in sampler {tokens.text!r}")
            params.append((key, tokens.word(f"a value for {name}:{key}", quoted=True)))
            if not tokens.accept(","):
                break
    return Part(name, tuple(params))


def _quote(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
