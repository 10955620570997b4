"""JSON schemas like those of applications, and the kinds of models that refuse each.

`MASKED` and `BOTH` have a part of the error: for schemas that masked models refuse, and that all models refuse.
"""

from __future__ import annotations

from typing import Any


def record(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """An object without other properties; all of its properties are required, or those named."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
PERSON = record({"name": STRING, "age": INTEGER})
STEP = record({"explanation": STRING, "output": STRING})

HELD: dict[str, dict[str, Any]] = {
    "flat": PERSON,
    "empty": {"type": "object", "additionalProperties": False},
    "calendar event": record({"name": STRING, "date": STRING, "participants": {"type": "array", "items": STRING}}),
    "math steps": record({"steps": {"type": "array", "items": STEP}, "final_answer": STRING}),
    "nested": record({"person": PERSON, "home": record({"city": STRING, "street": record({"no": INTEGER})})}),
    "enum": record({"colour": {"type": "string", "enum": ["red", "green", "blue"]}}),
    "enum of prefixes": record({"size": {"enum": ["s", "sm", "small", "smaller"]}}),
    "enum of kinds": record({"any": {"enum": ["a", 3, 4.5, None, True, [1, 2], {"b": 'c"d'}]}}),
    "one constant": record({"kind": {"const": "user"}, "id": INTEGER}),
    "booleans and null": record({"yes": {"type": "boolean"}, "nothing": {"type": "null"}}),
    "optional": record({"a": INTEGER, "b": INTEGER, "c": INTEGER, "d": {"type": "boolean"}}, required=["b"]),
    "all optional": record({"a": STRING, "b": INTEGER}, required=[]),
    "nullable": record({"name": {"type": ["string", "null"]}, "age": {"anyOf": [INTEGER, {"type": "null"}]}}),
    "union of scalars": record({"value": {"anyOf": [INTEGER, {"type": "boolean"}, {"enum": ["none", "all"]}]}}),
    "one of types": record({"value": {"oneOf": [INTEGER, {"type": "null"}]}}),
    "fixed array": record({"point": {"type": "array", "items": NUMBER, "minItems": 3, "maxItems": 3}}),
    "bounded array": record({"tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 4}}),
    "no items": record({"none": {"type": "array", "maxItems": 0}}),
    "array of arrays": {"type": "array", "items": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}},
    "integer bounds": record({"age": {"type": "integer", "minimum": 18, "maximum": 120}}),
    "negative bounds": record({"t": {"type": "integer", "exclusiveMinimum": -40, "exclusiveMaximum": 5}}),
    "number bounds": record({"p": {"type": "number", "minimum": 0, "maximum": 1}}),
    "narrow bounds": record({"p": {"type": "number", "exclusiveMinimum": 0.25, "maximum": 0.5}}),
    "string lengths": record({"code": {"type": "string", "minLength": 3, "maxLength": 5}}),
    "least length": record({"word": {"type": "string", "minLength": 4}}),
    "pattern": record({"plate": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"}}),
    "pattern of a part": record({"s": {"type": "string", "pattern": "a|bc+"}}),
    "formats": record({"day": {"type": "string", "format": "date"}, "ip": {"type": "string", "format": "ipv4"}}),
    "definitions": record({"a": {"$ref": "#/$defs/p"}, "b": {"$ref": "#/$defs/p"}}, **{"$defs": {"p": PERSON}}),
    "annotated": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "P",
        "description": "x",
        **PERSON,
    },
    "no declared end": {"type": "object", "properties": {"a": INTEGER}},
    "names in need of escapes": record({'say "x"': INTEGER, "Größe": INTEGER}),
    "integer alone": {"type": "integer", "minimum": 5},
    "string alone": {"type": "string", "maxLength": 6},
    "bounds of many digits": record({"a": {"type": "number", "minimum": 0, "maximum": 1e300}}),
    "in allOf": {"allOf": [PERSON]},
    "one of constants": record({"sign": {"oneOf": [{"const": "+"}, {"const": "-", "title": "minus"}]}}),
    "reference with an escape": record({"a": {"$ref": "#/$defs/a%20b"}}, **{"$defs": {"a b": INTEGER}}),
    "a property that is not allowed": {**record({"a": INTEGER}), "properties": {"a": INTEGER, "b": False}},
    "tuple": record({"t": {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2}}),
    "begin of an array": {"type": "array", "prefixItems": [STRING, INTEGER], "items": NUMBER, "minItems": 4},
    "no item allowed": record({"none": {"type": "array", "items": False}}),
    "required and not declared": {
        "type": "object",
        "properties": {"a": INTEGER},
        "required": ["a", "b"],
        "additionalProperties": NUMBER,
    },
}
CAT = record({"kind": {"const": "cat"}, "lives": INTEGER})
DOG = record({"kind": {"enum": ["dog", "wolf"]}, "name": {"type": "string", "maxLength": 9}})
# Held from left to right; refused in any order.
MASKED: dict[str, tuple[dict[str, Any], str]] = {
    "linked list": (
        record({"value": INTEGER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
        "#/properties/next/anyOf/0/$ref: an object or array cannot be one",
    ),
    "tree": (
        record({"name": STRING, "children": {"type": "array", "items": {"$ref": "#"}}}),
        "#/properties/children/items/$ref: # contains itself",
    ),
    "recursive definition": (
        {"$ref": "#/$defs/n", "$defs": {"n": record({"of": {"type": "array", "items": {"$ref": "#/$defs/n"}}})}},
        "#/$defs/n contains itself",
    ),
    "union of objects": (
        {"anyOf": [record({"kind": {"const": "a"}, "x": INTEGER}), record({"kind": {"const": "b"}, "y": STRING})]},
        "#/anyOf/0: an object or array cannot be one",
    ),
    "free keys": ({"type": "object", "additionalProperties": INTEGER}, "an object with free keys"),
    "anything": (record({"any": {}}), "an object or array cannot be one"),
    "anything with a title": (record({"any": {"title": "Any"}}), "an object or array cannot be one"),
    "one of objects": (
        record(
            {
                "pet": {
                    "oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}],
                    "discriminator": {"propertyName": "kind"},
                }
            },
            **{"$defs": {"c": CAT, "d": DOG}},
        ),
        "an object or array cannot be one",
    ),
    "any object": ({"type": "object"}, "an object with free keys"),
}
BOTH: dict[str, tuple[Any, str]] = {
    "unique": ({"type": "array", "items": INTEGER, "uniqueItems": True}, "#/uniqueItems: unique items"),
    "not": (record({"a": {"not": INTEGER}}), "#/properties/a: it has no type, and not does not imply one"),
    "multiple": (record({"a": {"type": "integer", "multipleOf": 3}}), "#/properties/a/multipleOf: multipleOf is not"),
    "oneOf of objects that may be equal": (
        {"oneOf": [CAT, record({"kind": {"type": "string"}, "lives": INTEGER})]},
        "#/oneOf/1: oneOf is supported only where",
    ),
    "oneOf of equal constants": ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "#/oneOf/1: oneOf is supported only where"),
    "reference to an anchor": (
        record({"a": {"$ref": "#p"}}, [], **{"$defs": {"p": {"$anchor": "p", **INTEGER}}}),
        "#/properties/a/$ref: '#p' names an $anchor",
    ),
    "reference relative to an id": (
        record(
            {"a": {"$ref": "#/$defs/p"}},
            **{
                "$defs": {
                    "p": {"$id": "https://example.com/p", "$ref": "#/$defs/q", "$defs": {"q": INTEGER}},
                    "q": STRING,
                }
            },
        ),
        "#/$defs/p/$ref: it is relative to the $id",
    ),
    "more items than allowed": (
        {"type": "array", "prefixItems": [INTEGER], "items": False, "minItems": 2},
        "#/items: false allows no more than 1 items, and minItems is 2",
    ),
    "flags of a pattern": (
        record({"a": {"type": "string", "pattern": "(?i)^[^a]$"}}),
        "#/properties/a/pattern: the pattern '(?i)^[^a]$' sets flags",
    ),
    "null for a minimum": ({"type": "integer", "minimum": None}, "#/minimum: a number is needed"),
    "a minimum of 400 digits": ({"type": "string", "minLength": 10**400}, "#/minLength"),
    "overlapping oneOf": (
        record({"a": {"oneOf": [INTEGER, {"type": "number", "minimum": 0}]}}),
        "#/properties/a/oneOf/1: oneOf is supported only where",
    ),
    "if": ({**PERSON, "if": PERSON, "then": PERSON}, "#/if: if is not supported"),
    "names by pattern": ({"type": "object", "patternProperties": {"^a": INTEGER}}, "#/patternProperties"),
    "several at once": ({"allOf": [PERSON, PERSON]}, "#/allOf: several schemas at once"),
    "lookahead": (record({"a": {"type": "string", "pattern": "^(?=a)b$"}}), "#/properties/a/pattern: the pattern"),
    "format without a rule": (record({"a": {"type": "string", "format": "iri"}}), "the format 'iri' is not known"),
    "no number": (record({"a": {"type": "integer", "minimum": 3, "maximum": 2}}), "#/properties/a: no number"),
    "reference to nothing": ({"$ref": "#/$defs/none"}, "'#/$defs/none' points at nothing"),
    "reference to itself": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "refers to itself alone"),
    "more than an answer has": (record({"a": {"type": "string", "minLength": 10**9}}), "#/properties/a/minLength"),
    "null for a bound": ({"type": "array", "minItems": None}, "#/minItems: a whole number"),
    "a number too long": (record({"a": {"type": "integer", "minimum": 10**20}}), "#/properties/a: no number"),
    "without an end": (record({"next": {"$ref": "#"}}), "every answer would be of infinite length"),
    "false": (record({"a": False}), "#/properties/a: false allows nothing"),
    "required and unknown": ({**PERSON, "required": ["name", "size"]}, "'size' is required and not among"),
}
# What a template has no end for is told in other words there.
MASKED_WORDS = {"without an end": "#/properties/next/$ref: # contains itself"}
