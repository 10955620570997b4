#!/usr/bin/env bash
# lm-format-enforcer: oneOf and anyOf are used in each other's place, and generators of schemas write either. anyOf
# takes alternatives of every type; those of a oneOf are taken for objects, whatever type they name. For {"oneOf":
# [integer, string]} the first character can only be "{", and the text that comes out, "{}", is of neither. A nullable
# number or a union of a word and a list is then never what the model would write, and no error says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check lm-format-enforcer==0.11.3 numpy==2.4.6 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib import metadata

from jsonschema import Draft202012Validator
from lmformatenforcer import JsonSchemaParser


def allowed(schema, text):
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


def objects(names):
    return [{"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]} for name in names]


cases = {
    "integer or string": ([{"type": "integer"}, {"type": "string"}], ["5", '"five"', "{}"]),
    "integer or null": ([{"type": "integer"}, {"type": "null"}], ["5", "null", "{}"]),
    "two objects": (objects("ab"), ['{"a":1}', '{"b":2}']),
}
print(*(f"{name} {metadata.version(name)}" for name in ("lm-format-enforcer", "jsonschema")))
print("guess: oneOf allows what anyOf allows, where no value is of two alternatives")
wrong = {}
for name, (alternatives, texts) in cases.items():
    for text in texts:
        one, either = allowed({"oneOf": alternatives}, text), allowed({"anyOf": alternatives}, text)
        valid = Draft202012Validator({"oneOf": alternatives}).is_valid(json.loads(text))
        print(f"seen, {name}: {text} allowed by oneOf {one}, by anyOf {either}, of the schema {valid}")
        assert either == valid
        wrong.setdefault(name, []).append(one != valid)
sys.exit(wrong != {"integer or string": [True] * 3, "integer or null": [True] * 3, "two objects": [False] * 2})
PY
