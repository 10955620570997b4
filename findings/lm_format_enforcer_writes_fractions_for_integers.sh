#!/usr/bin/env bash
# lm-format-enforcer: the schema {"type": "integer"} has no effect on the exponent of a number. A decimal point is
# forbidden, 1e-2 is not: the text that the guide lets through is a fraction, and is no value of the schema. 1e2 is one,
# and Python reads it as a float, so that it cannot index a list. Enumerated integers have no exponent.
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


integer, listed = {"type": "integer"}, {"type": "integer", "enum": [1, 2]}
texts = ["12", "-3", "1.5", "1e2", "1e-2", "7E-1"]
print(*(f"{name} {metadata.version(name)}" for name in ("lm-format-enforcer", "jsonschema")))
print("guess: what may be written for an integer is an integer")
seen = {}
for text in texts:
    value = json.loads(text)
    seen[text] = allowed(integer, text), Draft202012Validator(integer).is_valid(value)
    print(f"seen: {text} allowed {seen[text][0]}, of the schema {seen[text][1]}, in Python {value!r}")
print("as one of 1 and 2: 1e-2 allowed", allowed(listed, "1e-2"))
right = {"12": (True, True), "-3": (True, True), "1.5": (False, False), "1e2": (True, True)}
sys.exit(seen != right | {"1e-2": (True, False), "7E-1": (True, False)} or allowed(listed, "1e-2"))
PY
