"""JSON schemas by feature, each with texts that are valid and texts that are not, for benchmarks/json_schemas.py.

Texts are written without whitespace and with keys in the schema's order, unless the case is about how JSON is written.
`tests/test_json_schemas.py` holds every label against the package jsonschema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A schema, texts of values that are valid for it, and texts that are not valid or no JSON."""

    feature: str
    schema: dict[str, Any]
    valid: tuple[str, ...]
    invalid: tuple[str, ...]


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
CASES: list[Case] = []


def add(feature: str, schema: dict[str, Any], valid: list[str], invalid: list[str]) -> None:
    CASES.append(Case(feature, schema, tuple(valid), tuple(invalid)))


def closed(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """The schema of an object that allows no other properties; `required` None requires all of them."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def opened(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object that says nothing of other properties, none of which is required."""
    return {"type": "object", "properties": properties, **more}


def array(**more: Any) -> dict[str, Any]:
    return {"type": "array", **more}


def string(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def integer(**more: Any) -> dict[str, Any]:
    return {"type": "integer", **more}


def number(**more: Any) -> dict[str, Any]:
    return {"type": "number", **more}


PAIR = closed({"a": INTEGER, "b": STRING})
DRAFT7 = "http://json-schema.org/draft-07/schema#"

# Types
add("string", STRING, ['"a"', '""'], ["1", "null", '"a'])
add("integer", INTEGER, ["0", "-7", "42"], ["1.5", '"1"', "01", "true"])
add("number", NUMBER, ["0", "-1.5", "3"], ['"1"', ".5", "1."])
add("boolean", {"type": "boolean"}, ["true", "false"], ["1", '"true"', "True"])
add("null", {"type": "null"}, ["null"], ["0", '""'])
add("several types", {"type": ["string", "null"]}, ['"a"', "null"], ["1", "[]"])
add("array of anything", array(), ["[]", '[1,"a",null]'], ["{}", "[1,]"])
add("object of anything", {"type": "object"}, ["{}", '{"a":[1]}'], ["[]", "{1:2}"])
add("any value: {}", {}, ["1", '{"a":[1]}', '"x"'], ["nul", '{"a"}'])
add("any value: a title alone", closed({"a": {"title": "A"}}), ['{"a":1}', '{"a":["x"]}'], ['{"b":1}', "{}"])
add("any value: true", closed({"a": True}), ['{"a":1}', '{"a":["x"]}'], ['{"b":1}', "{}"])
add("no type: other types are valid", {"minLength": 2}, ['"ab"', "1"], ['"a"'])
add("annotations", string(title="T", description="D", default="d", examples=["e"], deprecated=True), ['"a"'], ["1"])
add("nullable, of OpenAPI, is no keyword", string(nullable=True), ['"a"'], ["null"])

# Objects
add("required", PAIR, ['{"a":1,"b":"x"}'], ['{"a":1}', '{"b":"x"}', "{}"])
add(
    "optional last",
    closed({"a": INTEGER, "b": STRING}, ["a"]),
    ['{"a":1}', '{"a":1,"b":"x"}'],
    ['{"b":"x"}', '{"a":1,}'],
)
add(
    "optional first",
    closed({"a": INTEGER, "b": STRING}, ["b"]),
    ['{"b":"x"}', '{"a":1,"b":"x"}'],
    ['{"a":1}', '{,"b":"x"}'],
)
add(
    "all optional",
    closed({"a": INTEGER, "b": STRING}, []),
    ["{}", '{"a":1}', '{"b":"x"}', '{"a":1,"b":"x"}'],
    ['{"a":"x"}', '{"a":1"b":"x"}'],
)
add("required, not declared", opened({"a": INTEGER}, required=["a", "c"]), ['{"a":1,"c":2}'], ['{"a":1}'])
add("additionalProperties: false", PAIR, ['{"a":1,"b":"x"}'], ['{"a":1,"b":"x","c":2}'])
add(
    "additionalProperties: a schema",
    opened({"a": INTEGER}, required=["a"], additionalProperties=STRING),
    ['{"a":1}', '{"a":1,"x":"y"}'],
    ['{"a":1,"x":2}'],
)
add("additionalProperties left out", opened({"a": INTEGER}, required=["a"]), ['{"a":1}', '{"a":1,"x":2}'], ['{"x":2}'])
add(
    "an additional key that is a declared one",
    opened({"a": INTEGER, "b": INTEGER}, additionalProperties=True),
    ['{"a":1,"b":2}', "{}"],
    ['{"b":1,"a":"x"}', '{"x":1,"a":"x"}'],
)
add("free keys", {"type": "object", "additionalProperties": INTEGER}, ["{}", '{"x":1,"y":2}'], ['{"x":"y"}'])
add(
    "minProperties, free keys",
    {"type": "object", "additionalProperties": INTEGER, "minProperties": 1},
    ['{"x":1}'],
    ["{}"],
)
add(
    "maxProperties, free keys",
    {"type": "object", "additionalProperties": INTEGER, "maxProperties": 1},
    ["{}", '{"x":1}'],
    ['{"x":1,"y":2}'],
)
add("minProperties, declared keys", closed({"a": INTEGER, "b": INTEGER}, [], minProperties=1), ['{"a":1}'], ["{}"])
add(
    "patternProperties alone",
    {"type": "object", "patternProperties": {"^x_": INTEGER}, "additionalProperties": False},
    ["{}", '{"x_a":1}'],
    ['{"x_a":"s"}', '{"y":1}'],
)
add(
    "patternProperties, others free",
    {"type": "object", "patternProperties": {"^x_": INTEGER}},
    ['{"x_a":1}', '{"y":"s"}'],
    ['{"x_a":"s"}'],
)
add(
    "patternProperties and properties",
    {**opened({"a": STRING}), "patternProperties": {"^x_": INTEGER}, "additionalProperties": False},
    ['{"a":"s","x_a":1}'],
    ['{"a":"s","x_a":"s"}'],
)
add(
    "propertyNames: pattern",
    {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": INTEGER},
    ['{"ab":1}', "{}"],
    ['{"A1":1}'],
)
add(
    "propertyNames: maxLength",
    {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": INTEGER},
    ['{"ab":1}'],
    ['{"abc":1}'],
)
add(
    "dependentRequired",
    closed({"a": INTEGER, "b": INTEGER}, [], dependentRequired={"a": ["b"]}),
    ['{"a":1,"b":2}', '{"b":2}'],
    ['{"a":1}'],
)
add(
    "dependentSchemas",
    closed({"a": INTEGER, "b": INTEGER}, [], dependentSchemas={"a": {"required": ["b"]}}),
    ['{"a":1,"b":2}', '{"b":2}'],
    ['{"a":1}'],
)
add(
    "unevaluatedProperties: false",
    opened({"a": INTEGER}, required=["a"], unevaluatedProperties=False),
    ['{"a":1}'],
    ['{"a":1,"x":2}'],
)
add(
    "unevaluatedProperties and allOf",
    {"type": "object", "allOf": [opened({"a": INTEGER}, required=["a"])], "unevaluatedProperties": False},
    ['{"a":1}'],
    ['{"a":1,"x":2}', "{}"],
)
add("a key in need of an escape", closed({'say "x"': INTEGER}), [r'{"say \"x\"":1}'], ['{"say x":1}'])
add("a key beyond ASCII", closed({"Größe": INTEGER}), ['{"Größe":1}'], ['{"Grosse":1}'])
add("an empty key", closed({"": INTEGER}), ['{"":1}'], ["{}", '{"a":1}'])
add("no properties", closed({}), ["{}"], ['{"a":1}'])
add("a property that is false", opened({"a": INTEGER, "b": False}, required=["a"]), ['{"a":1}'], ['{"a":1,"b":2}'])
add(
    "objects in objects",
    closed({"a": closed({"b": closed({"c": INTEGER})})}),
    ['{"a":{"b":{"c":1}}}'],
    ['{"a":{"b":{}}}', '{"a":{"c":1}}'],
)

# Strings
add("minLength", string(minLength=2), ['"ab"', '"é9"'], ['"a"', '""'])
add("maxLength", string(maxLength=2), ['"ab"', '""'], ['"abc"'])
add("minLength and maxLength", string(minLength=2, maxLength=3), ['"ab"', '"abc"'], ['"a"', '"abcd"'])
add("length: an escape is one character", string(maxLength=1), [r'"\n"', r'"\""'], ['"ab"', r'"\n\n"'])
add("length: \\u is one character", string(maxLength=1), [r'"\u0041"'], [r'"\u0041b"'])
add("maxLength: a surrogate pair is one character", string(maxLength=1), [r'"\ud83d\ude00"'], ['"ab"'])
add("minLength: a surrogate pair is one character", string(minLength=2), ['"ab"'], [r'"\ud83d\ude00"'])
add("minLength: four bytes are one character", string(minLength=2), ['"😀😀"'], ['"😀"'])
add("maxLength: four bytes are one character", string(maxLength=1), ['"😀"'], ['"😀😀"'])
add("maxLength: a combining accent is a character", string(maxLength=1), ['"e"'], ['"e\u0301"'])
add("pattern, both anchors", string(pattern="^[A-Z]{2}$"), ['"AB"'], ['"AB1"', '"xAB"', '"A"'])
add("pattern without anchors", string(pattern="b+"), ['"abc"', '"b"'], ['"ac"'])
add("pattern, begin", string(pattern="^a"), ['"abc"', '"a"'], ['"ba"'])
add("pattern, end", string(pattern="a$"), ['"ba"', '"a"'], ['"ab"'])
add("pattern: anchors bind before |", string(pattern="^a|b$"), ['"ax"', '"xb"'], ['"xay"'])
add("pattern: a group of options", string(pattern="^(ab|cd)$"), ['"ab"', '"cd"'], ['"ac"', '"abcd"'])
add("pattern: \\d", string(pattern=r"^\d+$"), ['"12"'], ['"1a"', '""'])
add("pattern: \\w and \\s", string(pattern=r"^\w+\s\w+$"), ['"a b"'], ['"ab"'])
add("pattern: a negated class", string(pattern="^[^a]+$"), ['"bcd"'], ['"ba"'])
add("pattern: a negated class has the quote", string(pattern="^[^a]+$"), [r'"b\"c"'], [r'"a\"c"'])
add("pattern: . has no line break", string(pattern="^a.c$"), ['"abc"'], ['"ac"', r'"a\nc"'])
add("pattern: bounded repetition", string(pattern="^a{2,3}$"), ['"aa"', '"aaa"'], ['"a"', '"aaaa"'])
add("pattern: lookahead", string(pattern="^(?!ab)[a-z]+$"), ['"xy"'], ['"abc"'])
add("pattern: back reference", string(pattern=r"^(a|b)\1$"), ['"aa"', '"bb"'], ['"ab"'])
add("pattern: a quote", string(pattern='^"$'), [r'"\""'], ['"a"', '"""'])
add("pattern: a backslash", string(pattern=r"^\\$"), [r'"\\"'], ['"a"'])
add("pattern beyond ASCII", string(pattern="^é$"), ['"é"'], ['"e"'])
add("pattern: word boundary", string(pattern=r"\bcat\b"), ['"a cat"'], ['"cats"'])
add("pattern and minLength", string(pattern="^a+$", minLength=3), ['"aaa"'], ['"a"', '"bbb"'])
add("pattern and maxLength", string(pattern="^a+$", maxLength=2), ['"a"', '"aa"'], ['"aaa"', '"b"'])
add("format: date", string(format="date"), ['"2024-02-28"'], ['"2024-13-01"', '"x"'])
add("format: date, days of the month", string(format="date"), ['"2024-02-28"'], ['"2024-02-30"'])
add("format: email", string(format="email"), ['"a@b.co"'], ['"x"'])
add("format: ipv4", string(format="ipv4"), ['"10.0.0.1"'], ['"256.1.1.1"', '"x"'])
add("format: ipv6", string(format="ipv6"), ['"::1"'], ['"x"', '"::g"'])
add(
    "format: uuid",
    string(format="uuid"),
    ['"0a1b2c3d-0000-4000-8000-0123456789ab"'],
    ['"x"', '"0a1b2c3d-0000-4000-8000-0123456789ag"'],
)
add("format that nobody knows", string(format="colour"), ['"x"'], ["1"])
add("format and maxLength", string(format="email", maxLength=8), ['"a@b.co"'], ['"abcdef@b.co"', '"x"'])

# Numbers
add("minimum, integer", integer(minimum=0), ["0", "5"], ["-1"])
add("maximum, integer", integer(maximum=10), ["10", "-3"], ["11"])
add("exclusiveMinimum, integer", integer(exclusiveMinimum=0), ["1"], ["0", "-1"])
add("exclusiveMaximum, integer", integer(exclusiveMaximum=10), ["9"], ["10"])
add("range, integer", integer(minimum=18, maximum=120), ["18", "99", "120"], ["17", "121", "1800"])
add("negative range, integer", integer(minimum=-40, maximum=-7), ["-40", "-7"], ["-6", "-41", "0"])
add("integer, bound with a fraction", integer(minimum=1.5), ["2"], ["1"])
add("minimum and exclusiveMinimum", integer(minimum=3, exclusiveMinimum=3), ["4"], ["3"])
add("minimum, number", number(minimum=0), ["0", "0.5"], ["-0.1", "-1"])
add("maximum, number", number(maximum=1), ["1", "0.99"], ["1.01", "2"])
add("exclusive bounds, number", number(exclusiveMinimum=0, exclusiveMaximum=1), ["0.5", "0.001"], ["0", "0.0", "1"])
add("range of fractions, number", number(minimum=0.25, maximum=0.5), ["0.25", "0.3", "0.5"], ["0.2", "0.51", "1"])
add("exponent", NUMBER, ["1e3", "1.5E-2"], ["1e", "e3"])
add("exponent beyond a maximum", number(maximum=10), ["5"], ["1e3"])
add("exponent below a minimum", number(minimum=1), ["2"], ["1e-3", "5e-1"])
add("integer written 1.0", INTEGER, ["1.0"], ["1.5"])
add("integer written 1e2", INTEGER, ["1e2"], ["1e-1"])
add("minus zero", integer(minimum=0), ["-0"], ["-1"])
add("integer of 20 digits", INTEGER, ["12345678901234567890"], ["1.5"])
add("multipleOf, integer", integer(multipleOf=3), ["9", "0", "-6"], ["10"])
add("multipleOf, number", number(multipleOf=0.5), ["1.5", "2"], ["1.25"])
add("multipleOf and range", integer(multipleOf=3, minimum=10, maximum=20), ["12", "18"], ["9", "21", "13"])

# Enumerations and constants
add("enum of strings", {"enum": ["red", "green"]}, ['"red"', '"green"'], ['"blue"', '"re"'])
add("enum of prefixes", {"enum": ["s", "sm", "small"]}, ['"s"', '"sm"', '"small"'], ['"sma"'])
add(
    "enum of mixed types",
    {"enum": ["a", 1, None, True, [1], {"k": 1}]},
    ['"a"', "1", "null", "true", "[1]", '{"k":1}'],
    ["2", "false", "[2]", '{"k":2}'],
)
add("enum and type", integer(enum=[1, "a"]), ["1"], ['"a"'])
add("enum and minLength", string(enum=["a", "abc"], minLength=2), ['"abc"'], ['"a"'])
add("enum: 0 is not false", {"enum": [0]}, ["0"], ["false"])
add("enum: 1.0 is 1", {"enum": [1.0]}, ["1.0", "1"], ["2"])
add("const: 1 is 1.0", {"const": 1}, ["1", "1.0"], ["true", "2"])
add("const, string with escapes", {"const": 'a"b\\c\n'}, [r'"a\"b\\c\n"'], ['"ab"'])
add("const, object", {"const": {"a": 1, "b": [2]}}, ['{"a":1,"b":[2]}'], ['{"a":1}', '{"a":1,"b":[3]}'])
add("const, null", {"const": None}, ["null"], ["0"])
add("const beyond ASCII", {"const": "é"}, ['"é"'], ['"e"'])

# Arrays
add("items", array(items=INTEGER), ["[]", "[1,2]"], ['["a"]', "[1 2]"])
add("minItems", array(items=INTEGER, minItems=2), ["[1,2]", "[1,2,3]"], ["[]", "[1]"])
add("maxItems", array(items=INTEGER, maxItems=2), ["[]", "[1,2]"], ["[1,2,3]"])
add("minItems and maxItems", array(items=INTEGER, minItems=2, maxItems=2), ["[1,2]"], ["[1]", "[1,2,3]"])
add("maxItems: 0", array(items=INTEGER, maxItems=0), ["[]"], ["[1]"])
add("uniqueItems", array(items=INTEGER, uniqueItems=True), ["[1,2]"], ["[1,1]"])
add("uniqueItems of an enum", array(items={"enum": ["a", "b"]}, uniqueItems=True), ['["a","b"]'], ['["a","a"]'])
add("prefixItems", array(prefixItems=[INTEGER, STRING]), ['[1,"a"]', "[1]", '[1,"a",null]'], ['["a"]', "[1,2]"])
add("prefixItems, no others", array(prefixItems=[INTEGER, STRING], items=False), ['[1,"a"]'], ['[1,"a",2]', "[1,2]"])
add("prefixItems and items", array(prefixItems=[INTEGER], items=STRING), ['[1,"x"]'], ["[1,2]", '["x"]'])
add("prefixItems and minItems", array(prefixItems=[INTEGER, STRING], minItems=2), ['[1,"a"]'], ["[1]", "[]"])
add(
    "items as a tuple, draft 7",
    {"$schema": DRAFT7, **array(items=[INTEGER, STRING], additionalItems=False)},
    ['[1,"a"]'],
    ['["a",1]', '[1,"a",2]'],
)
add("items: false", array(items=False), ["[]"], ["[1]"])
add("contains", array(items=INTEGER, contains={"const": 1}), ["[2,1]"], ["[2]", "[]"])
add("minContains", array(items=INTEGER, contains={"const": 1}, minContains=2), ["[1,1]"], ["[1,2]"])
add(
    "unevaluatedItems: false",
    array(prefixItems=[INTEGER], unevaluatedItems=False),
    ["[1]"],
    ["[1,2]", '["a"]'],
)
add("arrays in arrays", array(items=array(items=INTEGER, minItems=1)), ["[[1],[2,3]]"], ["[[]]", "[1]"])

# Combinations
add("anyOf of types", {"anyOf": [INTEGER, {"type": "null"}]}, ["1", "null"], ['"a"'])
add(
    "anyOf of objects",
    {"anyOf": [closed({"a": INTEGER}), closed({"a": STRING, "b": INTEGER})]},
    ['{"a":1}', '{"a":"x","b":1}'],
    ['{"a":"x"}', '{"a":1,"b":1}'],
)
add(
    "anyOf and keywords beside it",
    closed({"a": INTEGER, "b": INTEGER}, [], anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
    ['{"a":1}', '{"b":1}'],
    ["{}"],
)
add("oneOf of types", {"oneOf": [INTEGER, STRING]}, ["1", '"a"'], ["null"])
add("oneOf whose options overlap", {"oneOf": [INTEGER, number(minimum=0)]}, ["-1", "0.5"], ["3", "-0.5"])
add("oneOf of constants", {"oneOf": [{"const": "a"}, {"const": "b"}]}, ['"a"', '"b"'], ['"c"'])
add(
    "oneOf of objects told apart by a constant",
    {
        "oneOf": [
            closed({"kind": {"const": "cat"}, "lives": INTEGER}),
            closed({"kind": {"const": "dog"}, "name": STRING}),
        ]
    },
    ['{"kind":"cat","lives":9}', '{"kind":"dog","name":"x"}'],
    ['{"kind":"cat","name":"x"}', '{"kind":"cow"}'],
)
add("allOf of one schema", {"allOf": [PAIR]}, ['{"a":1,"b":"x"}'], ['{"a":1}'])
add("allOf of bounds", {"allOf": [integer(minimum=1), integer(maximum=5)]}, ["1", "5"], ["0", "6"])
add(
    "allOf of objects",
    {"allOf": [opened({"a": INTEGER}, required=["a"]), opened({"b": STRING}, required=["b"])]},
    ['{"a":1,"b":"x"}'],
    ['{"a":1}', '{"b":"x"}', '{"a":1}{"b":"x"}'],
)
add(
    "allOf and keywords beside it",
    {**opened({"a": INTEGER}, required=["a"]), "allOf": [{"properties": {"b": STRING}, "required": ["b"]}]},
    ['{"a":1,"b":"x"}'],
    ['{"a":1}', '{"a":1,"b":2}'],
)
add("not: a type", {"not": STRING}, ["1", "null"], ['"a"'])
add("not: a value", integer(**{"not": {"const": 3}}), ["4"], ["3"])
KIND = closed({"k": {"enum": ["a", "b"]}, "v": INTEGER}, ["k"])
IF_A = {"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["v"]}}
add("if and then", {**KIND, **IF_A}, ['{"k":"b"}', '{"k":"a","v":1}'], ['{"k":"a"}'])
add(
    "if, then and else",
    {**KIND, **IF_A, "else": {"properties": {"v": {"maximum": 5}}}},
    ['{"k":"b","v":5}', '{"k":"a","v":9}'],
    ['{"k":"a"}', '{"k":"b","v":9}'],
)

# References
for reference, target, definitions in (
    ("$ref", "#/$defs/p", {"$defs": {"p": INTEGER}}),
    ("$ref to definitions", "#/definitions/p", {"definitions": {"p": INTEGER}}),
    ("$ref, ~1 for a slash", "#/$defs/p~1q", {"$defs": {"p/q": INTEGER}}),
    ("$ref, %20 for a space", "#/$defs/p%20q", {"$defs": {"p q": INTEGER}}),
):
    add(reference, closed({"a": {"$ref": target}}, **definitions), ['{"a":1}'], ['{"a":"x"}'])
add(
    "$ref to a property",
    closed({"a": INTEGER, "b": {"$ref": "#/properties/a"}}),
    ['{"a":1,"b":2}'],
    ['{"a":1,"b":"x"}'],
)
add(
    "$ref to an $anchor",
    closed({"a": {"$ref": "#p"}}, [], **{"$defs": {"p": integer(**{"$anchor": "p"})}}),
    ['{"a":1}'],
    ['{"a":"x"}', '{"a":{}}'],
)
add(
    "$ref within a schema that has an $id",
    closed(
        {"a": {"$ref": "#/$defs/p"}},
        **{
            "$id": "https://example.com/whole",
            "$defs": {
                "p": {"$id": "https://example.com/part", "$ref": "#/$defs/q", "$defs": {"q": INTEGER}},
                "q": STRING,
            },
        },
    ),
    ['{"a":1}'],
    ['{"a":"x"}'],
)
add("$ref and keywords beside it", {"$ref": "#/$defs/p", "maximum": 5, "$defs": {"p": INTEGER}}, ["5"], ["6"])
LIST = closed({"value": INTEGER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})


def chained(depth: int, end: str = "null") -> str:
    return '{"value":1,"next":' * depth + end + "}" * depth


add("recursion", LIST, [chained(1), chained(2)], ['{"value":1}', chained(1, "1"), chained(2, '{"value":1}')])
add("recursion, eight levels", LIST, [chained(8)], [chained(8, "1"), chained(7, '{"value":1}')])
add(
    "recursion in an array",
    closed({"name": STRING, "children": array(items={"$ref": "#"})}),
    ['{"name":"a","children":[]}', '{"name":"a","children":[{"name":"b","children":[]}]}'],
    ['{"name":"a","children":[{"name":"b"}]}', '{"name":"a"}'],
)
LEVELS = {f"l{i}": closed({"in": {"$ref": f"#/$defs/l{i + 1}"}}) for i in range(6)} | {"l6": closed({"x": INTEGER})}
add(
    "definitions, seven levels without recursion",
    {"$ref": "#/$defs/l0", "$defs": LEVELS},
    ['{"in":' * 6 + '{"x":1}' + "}" * 6],
    ['{"in":' * 6 + "{}" + "}" * 6, '{"in":' * 3 + "{}" + "}" * 3],
)

# How JSON is written
add("written: a space after : and ,", PAIR, ['{"a": 1, "b": "x"}'], ['{"a": 1, "b": 2}'])
add("written: indented", PAIR, ['{\n  "a": 1,\n  "b": "x"\n}'], ['{\n  "a": 1\n}'])
add("written: keys in another order", PAIR, ['{"b":"x","a":1}'], ['{"b":1,"a":1}'])
add("written: a key with an escape", PAIR, [r'{"\u0061":1,"b":"x"}'], [r'{"\u0063":1,"b":"x"}'])
add("written: \\/ for a slash", STRING, [r'"a\/b"'], [r'"a\xb"'])
add("written: \\u00e9 for é", STRING, [r'"\u00e9"'], [r'"\u00e"'])
add("written: \\u00e9 in a constant", {"const": "é"}, [r'"\u00e9"'], [r'"\u00e8"'])
add("written: control characters have escapes", STRING, [r'"a\nb"'], ['"a\nb"', '"a\tb"'])
add("written: U+007F needs no escape", STRING, ['"\x7f"'], ['"\x1f"'])
add("written: U+2028 needs no escape", STRING, ['"\u2028"'], ["\u2028"])

assert len({case.feature for case in CASES}) == len(CASES), "features are names"
assert all(case.valid and case.invalid and json.dumps(case.schema) for case in CASES)
