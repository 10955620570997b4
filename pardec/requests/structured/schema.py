"""Reads a JSON schema into the values that an answer may have; unsupported parts are refused with their path.

An answer may be narrower than its schema: properties are in the schema's order, without any that it does not
declare, whitespace is left out, numbers have no exponent and at most 15 digits on each side of the point.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeGuard
from urllib.parse import unquote

from .forms import ANNOTATIONS, OF_TYPE
from .numeric import integers, reals
from .patterns import FORMATS, pattern
from .regular import Automaton, choice, literal
from .values import Array, Map, Object, Reference, Scalar, Schema, Text, Union, Value, refusal

_DEEPEST = 64  # levels of schemas within schemas
_MOST = 4096  # items or characters that a schema may demand
_MOST_PARTS = 4096  # schemas within a schema, and values of enums
_MOST_MARKED = 64
_MOST_WORK = 2**16  # options of all states of the automata of patterns


def read(schema: Mapping[str, Any] | bool, *, ascii: bool = False) -> Schema:
    """The values of a JSON schema; True is an object of any kind. Raises SpecError that names the path.

    `ascii` writes other characters of the schema as escapes.
    """
    reader = _Reader(schema, ascii)
    if _WITHIN_LIMITS and json.dumps(schema, ensure_ascii=False) in _WITHIN_LIMITS:
        reader.explores = False
    root = reader.any_object("#") if schema is True else reader.value(schema, "#")
    reader.read_definitions()
    return Schema(root, reader.definitions, ascii)


_WITHIN_LIMITS: OrderedDict[str, None] = OrderedDict()  # schemas whose patterns have been explored


def mark_within_limits(text: str) -> None:
    """Records that the patterns of a schema were explored, so that this is not repeated."""
    _WITHIN_LIMITS[text] = None
    while len(_WITHIN_LIMITS) > _MOST_MARKED:
        _WITHIN_LIMITS.popitem(last=False)


class _Reader:
    explores = True

    def __init__(self, root: Any, ascii: bool) -> None:
        self.root, self.ascii, self.definitions = root, ascii, dict[str, Value]()
        self._unread: list[tuple[str, Any, str]] = []  # definitions, each with who refers to it first
        self._parts, self._work = 0, 0

    def value(self, schema: Any, path: str) -> Value:
        self._count(1, path)
        if schema is True:
            return self.anything(path)
        if not isinstance(schema, Mapping):
            reason = "false allows nothing" if schema is False else f"a schema is an object, got {schema!r:.60}"
            raise refusal(path, reason)
        if path.count("/") > 2 * _DEEPEST:
            raise refusal(path, f"it is nested more than {_DEEPEST} levels deep")
        own = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        if not own:
            return self.anything(path)
        for keyword, read in (("$ref", self.reference), ("anyOf", self.any_of), ("oneOf", self.one_of)):
            if keyword in own:
                self._alone(own, keyword, path)
                return read(own[keyword], f"{path}/{keyword}")
        if "allOf" in own:
            self._alone(own, "allOf", path)
            parts = self._list(own["allOf"], f"{path}/allOf")
            if len(parts) != 1:
                raise refusal(f"{path}/allOf", "several schemas at once are not supported")
            return self.value(parts[0], f"{path}/allOf/0")
        if "enum" in own or "const" in own:
            return self.enum(own, path)
        return self.typed(own, path)

    def read_definitions(self) -> None:
        """Reads the definitions that references name one by one, since they may form a long chain."""
        known: list[tuple[str, str]] = []
        while self._unread:
            target, schema, path = self._unread.pop()
            self.definitions[target] = self.value(schema, target)
            known.append((target, path))
        for target, path in known:
            self._refuse_circle(target, path)

    def _count(self, parts: int, path: str) -> None:
        self._parts += parts
        if self._parts > _MOST_PARTS:
            raise refusal(path, f"the schema has more than {_MOST_PARTS} parts", "ask for less in one answer")

    def typed(self, own: Mapping[str, Any], path: str) -> Value:
        """The value of a schema with one type or several."""
        types = own.get("type")
        if types is None:
            types = [kind for kind, words in OF_TYPE.items() if set(words) & set(own) and kind != "integer"]
            if len(types) != 1:
                unknown = sorted(set(own))
                raise refusal(path, f"it has no type, and {', '.join(unknown)} does not imply one")
        types = list(types) if isinstance(types, list | tuple) else [types]
        if not types or any(not isinstance(kind, str) or kind not in OF_TYPE for kind in types):
            raise refusal(f"{path}/type", f"{own.get('type')!r} is not a JSON type", f"one of {', '.join(OF_TYPE)}")
        known = {word for kind in types for word in OF_TYPE[kind]}
        for keyword in own:
            if keyword != "type" and keyword not in known:
                raise refusal(f"{path}/{keyword}", f"{keyword} is not supported for the type {', '.join(types)}")
        if "number" in types:  # which takes whole numbers too
            types = [kind for kind in types if kind != "integer"]
        each = [getattr(self, f"_{kind}")(own, path) for kind in types]
        return each[0] if len(each) == 1 else Union(path, tuple(each))

    # --- types ---

    def _object(self, own: Mapping[str, Any], path: str) -> Value:
        properties, required = own.get("properties", {}), own.get("required", [])
        if not isinstance(properties, Mapping):
            raise refusal(f"{path}/properties", "properties are an object of schemas")
        if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
            raise refusal(f"{path}/required", "required is a list of names")
        more = own.get("additionalProperties", True)
        missing = [name for name in dict.fromkeys(required) if name not in properties]
        if missing and more is False:
            raise refusal(f"{path}/required", f"{missing[0]!r} is required and not among the properties")
        if not properties and not missing:
            if more is False:
                return Scalar(path, literal("{}"))
            return Map(path, self.value(more, f"{path}/additionalProperties"))
        members = tuple(
            (name, self.value(schema, f"{path}/properties/{_token(name)}"), name in required)
            for name, schema in properties.items()
            if schema is not False or name in required
        )
        added = tuple((name, self.value(more, f"{path}/additionalProperties"), True) for name in missing)
        return Object(path, members + added)

    def _array(self, own: Mapping[str, Any], path: str) -> Value:
        least, most = self._bounds(own, "Items", path)
        first = self._list(own["prefixItems"], f"{path}/prefixItems") if "prefixItems" in own else ()
        rest = own.get("items", True)
        if rest is False:
            most = len(first) if most is None else min(most, len(first))
            if least > most:
                raise refusal(f"{path}/items", f"false allows no more than {most} items, and minItems is {least}")
        if own.get("uniqueItems") and (most is None or most > 1):
            raise refusal(f"{path}/uniqueItems", "unique items cannot be enforced")
        if most == 0:
            return Scalar(path, literal("[]"))
        prefix = tuple(self.value(each, f"{path}/prefixItems/{at}") for at, each in enumerate(first))
        item = prefix[-1] if rest is False else self.value(rest, f"{path}/items")
        return Array(path, item, least, most, prefix)

    def _string(self, own: Mapping[str, Any], path: str) -> Value:
        least, most = self._bounds(own, "Length", path)
        keyword = "pattern" if "pattern" in own else "format" if "format" in own else None
        if keyword is None:
            return Text(path, least, most)
        for other in ("format", "minLength", "maxLength"):
            if other in own and other != keyword:
                raise refusal(f"{path}/{other}", f"{other} together with {keyword} is not supported")
        source = own[keyword]
        if keyword == "format":
            if not isinstance(source, str) or source not in FORMATS:
                raise refusal(f"{path}/format", f"the format {source!r} is not known", f"known: {', '.join(FORMATS)}")
            source = FORMATS[source]
        if not isinstance(source, str):
            raise refusal(f"{path}/pattern", "a pattern is text")
        expression = pattern(source, lambda reason: refusal(f"{path}/{keyword}", reason))
        if not self.explores:
            return Scalar(path, expression)
        automaton = Automaton(expression)
        if not automaton.explore(_MOST_WORK - self._work):
            raise refusal(
                f"{path}/{keyword}",
                f"the pattern {source!r:.60} takes too many states",
                "write a simpler one, and anchor it with ^ and $",
            )
        self._work += automaton.work
        return Scalar(path, expression)

    def _integer(self, own: Mapping[str, Any], path: str) -> Value:
        low, high, above, below = self._range(own, path)
        first = None if low is None else int(low.to_integral_value("ROUND_CEILING")) + (above and low == int(low))
        last = None if high is None else int(high.to_integral_value("ROUND_FLOOR")) - (below and high == int(high))
        return self._some(Scalar(path, integers(first, last)), path)

    def _number(self, own: Mapping[str, Any], path: str) -> Value:
        low, high, above, below = self._range(own, path)
        return self._some(Scalar(path, reals(low, high, above=above, below=below)), path)

    def _boolean(self, own: Mapping[str, Any], path: str) -> Value:
        return Scalar(path, choice([literal("true"), literal("false")]))

    def _null(self, own: Mapping[str, Any], path: str) -> Value:
        return Scalar(path, literal("null"))

    # --- one of several ---

    def enum(self, own: Mapping[str, Any], path: str) -> Value:
        keyword = "enum" if "enum" in own else "const"
        for other in own:
            if other not in (keyword, "type"):
                raise refusal(f"{path}/{other}", f"{other} together with {keyword} is not supported")
        values = self._list(own["enum"], f"{path}/enum") if keyword == "enum" else [own["const"]]
        self._count(len(values), path)
        types = own.get("type")
        if types is not None:
            kinds = types if isinstance(types, list | tuple) else [types]
            values = [value for value in values if any(kind in kinds for kind in _kinds(value))]
        try:
            style: Any = {"separators": (",", ":"), "ensure_ascii": self.ascii, "allow_nan": False}
            texts = [json.dumps(value, **style) for value in values]
        except (TypeError, ValueError) as error:
            raise refusal(f"{path}/{keyword}", f"a value is not JSON: {error}") from error
        if not texts:
            raise refusal(f"{path}/{keyword}", "no value has the type")
        return Scalar(path, choice(map(literal, texts)))

    def any_of(self, options: Any, path: str) -> Value:
        each = [self.value(option, f"{path}/{at}") for at, option in enumerate(self._list(options, path))]
        return each[0] if len(each) == 1 else Union(path, tuple(each))

    def one_of(self, options: Any, path: str) -> Value:
        """Reads oneOf as anyOf, if no value matches two of its options."""
        known: list[Any] = []
        for at, option in enumerate(self._list(options, path)):
            own = self._resolved(option)
            if not all(self._disjoint(own, other) for other in known):
                raise refusal(
                    f"{path}/{at}",
                    "oneOf is supported only where options differ in type, or in the constant of a required property",
                    "write anyOf, which also allows values that match several options",
                )
            known.append(own)
        return self.any_of(options, path)

    def _disjoint(self, one: Any, other: Any, *, members: bool = True) -> bool:
        """Whether no value is valid for both schemas, by types, constants or, with `members`, a required property."""
        kinds, values = (_types(one), _types(other)), (_listed(one), _listed(other))
        if not (kinds[0] and kinds[1]):
            return False
        if not kinds[0] & kinds[1]:
            return True
        if values[0] is not None and values[1] is not None:
            return not any(value == known for value in values[0] for known in values[1])
        if not members or kinds != ({"object"}, {"object"}):
            return False
        objects = [(own.get("properties"), own.get("required")) for own in (one, other)]
        if not all(isinstance(each, Mapping) and isinstance(names, list | tuple) for each, names in objects):
            return False
        both = [name for name in objects[0][1] if isinstance(name, str) and name in objects[1][1]]
        pairs = ([self._resolved(each.get(name)) for each, _ in objects] for name in both)
        return any(self._disjoint(*pair, members=False) for pair in pairs)

    def _resolved(self, schema: Any) -> Any:
        """The schema that references lead to; a schema without a reference itself."""
        for _ in range(_DEEPEST):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = self._at(schema["$ref"])
        return schema

    def reference(self, target: Any, path: str) -> Value:
        if not isinstance(target, str) or not target.startswith("#"):
            raise refusal(path, f"{target!r} is not a reference within the schema", 'for example "#/$defs/Person"')
        if target != "#" and not target.startswith("#/"):
            raise refusal(path, f"{target!r} names an $anchor, which is not followed", 'write "#/$defs/..." instead')
        if any(isinstance(part, Mapping) and _is_base(part.get("$id")) for part in self._way(path)[1:]):
            raise refusal(path, "it is relative to the $id of a part of the schema", "leave out that $id")
        target = unquote(target)
        if target not in self.definitions:
            schema = self._at(target)
            if schema is None:
                raise refusal(path, f"{target!r} points at nothing")
            self.definitions[target] = Reference(path, target)  # known while it is read: it may refer to itself
            self._unread.append((target, schema, path))
        return Reference(path, target)

    def _way(self, pointer: str) -> list[Any]:
        """The parts of the schema that a JSON pointer such as "#/$defs/Person" leads through, as far as they exist."""
        way = [self.root]
        for token in pointer.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            step: Any = int(token) if isinstance(way[-1], list) and token.isdecimal() else token
            try:
                way.append(way[-1][step])
            except (KeyError, IndexError, TypeError):
                break
        return way

    def _at(self, target: Any) -> Any:
        """The part of the schema that a reference points at; None for nothing."""
        if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
            return None
        way = self._way(unquote(target))
        return way[-1] if len(way) == len(target.split("/")) else None

    def _refuse_circle(self, target: str, path: str) -> None:
        """Refuses references that form a circle without a value."""
        value, known = self.definitions[target], {target}
        while isinstance(value, Reference):
            if value.name in known:
                raise refusal(path, f"{target!r} refers to itself alone")
            known.add(value.name)
            value = self.definitions[value.name]

    # --- anything ---

    def anything(self, path: str) -> Value:
        name = "any value"
        if name not in self.definitions:
            whole = Reference(path, name)
            self.definitions[name] = whole
            scalars: Iterable[Value] = [
                Text(path),
                self._number({}, path),
                self._boolean({}, path),
                self._null({}, path),
            ]
            self.definitions[name] = Union(path, (*scalars, Array(path, whole, 0, None), Map(path, whole)))
        return Reference(path, name)

    def any_object(self, path: str) -> Value:
        return Map(path, self.anything(path))

    # --- keywords ---

    def _alone(self, own: Mapping[str, Any], keyword: str, path: str) -> None:
        for other in own:
            if other != keyword:
                raise refusal(f"{path}/{other}", f"{other} together with {keyword} is not supported")

    def _list(self, value: Any, path: str) -> Sequence[Any]:
        if not isinstance(value, list | tuple) or not value:
            raise refusal(path, "a list with at least one entry is needed")
        return value

    def _bounds(self, own: Mapping[str, Any], of: str, path: str) -> tuple[int, int | None]:
        least, most = own.get(f"min{of}", 0), own.get(f"max{of}")
        for name, value in ((f"min{of}", least), (f"max{of}", most)):
            if name in own and not (_is_number(value) and value % 1 == 0 and value >= 0):
                raise refusal(f"{path}/{name}", f"a whole number of at least 0 is needed, got {value!r:.60}")
        if least > _MOST:
            raise refusal(f"{path}/min{of}", f"{least} is more than the {_MOST} that an answer may have")
        if most is not None and least > most:
            raise refusal(f"{path}/max{of}", f"{most} is less than min{of}, {least}")
        return int(least), None if most is None else int(most)

    def _range(self, own: Mapping[str, Any], path: str) -> tuple[Decimal | None, Decimal | None, bool, bool]:
        """The bounds of a number, and whether each is exclusive."""
        limits: dict[str, Decimal | None] = {}
        for name in OF_TYPE["number"]:
            value = own.get(name)
            if name in own and not _is_number(value):
                raise refusal(f"{path}/{name}", f"a number is needed, got {value!r:.60}")
            limits[name] = Decimal(str(value)) if name in own else None
        low, above = _tighter(limits["minimum"], limits["exclusiveMinimum"], max)
        high, below = _tighter(limits["maximum"], limits["exclusiveMaximum"], min)
        return low, high, above, below

    def _some(self, value: Scalar, path: str) -> Scalar:
        if value.expression.shortest is None:
            raise refusal(path, "no number of at most 15 digits lies between the bounds")
        return value


def _tighter(
    closed: Decimal | None, excluded: Decimal | None, tighter: Callable[[Decimal, Decimal], Decimal]
) -> tuple[Decimal | None, bool]:
    """The tighter of two bounds, and whether it is exclusive."""
    if closed is None or excluded is None:
        return (closed, False) if excluded is None else (excluded, True)
    return tighter(closed, excluded), tighter(closed, excluded) == excluded


def _is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a JSON value is a number; true is not."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _kinds(value: Any) -> set[str]:
    """The types of a JSON value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return {"integer", "number"}
    names = {str: "string", float: "number", type(None): "null", list: "array", tuple: "array", dict: "object"}
    return {name for kind, name in names.items() if isinstance(value, kind)}


def _is_base(identifier: Any) -> bool:
    """Whether references below a schema with this $id are relative to it; one that begins with # is an anchor."""
    return isinstance(identifier, str) and not identifier.startswith("#")


def _listed(schema: Any) -> Sequence[Any] | None:
    """The values of a constant or an enumeration; None for other schemas."""
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list | tuple) else None


def _types(schema: Any) -> set[str]:
    """The types that a schema allows, as far as it states them without references."""
    if not isinstance(schema, Mapping):
        return set()
    if "const" in schema or "enum" in schema:
        return set().union(*map(_kinds, _listed(schema) or ()))
    types = schema.get("type", [])
    each = {kind for kind in (types if isinstance(types, list | tuple) else [types]) if isinstance(kind, str)}
    return each | ({"integer"} if "number" in each else set()) | ({"number"} if "integer" in each else set())


def _token(name: str) -> str:
    """A name as part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
