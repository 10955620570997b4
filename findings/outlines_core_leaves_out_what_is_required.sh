#!/usr/bin/env bash
# outlines-core: a JSON schema may require a property that "properties" does not describe; any value will do.
# outlines-core passes over such a name: it admits the object without it, and forbids the one that has it. So does a
# name that was misspelled in "required". What the guide lets a model write is then never of the schema, what is of it
# cannot be written, and no error says so. Described by a schema of its own, the same property is required.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PY'
import json
import re
import sys
from importlib import metadata

import jsonschema
from outlines_core.json_schema import build_regex_from_schema

number = {"type": "integer"}
cases = {
    "z is required and not described": {"properties": {"a": number}, "required": ["a", "z"]},
    "z is required and described": {"properties": {"a": number, "z": number}, "required": ["a", "z"]},
}
texts = ['{"a": 1}', '{"a": 1, "z": 2}']
print("outlines-core", metadata.version("outlines-core"), "jsonschema", metadata.version("jsonschema"))
print("guess: an object without z is forbidden, and one with it is admitted, as jsonschema has it")
seen = {}
for name, case in cases.items():
    schema = {"type": "object", **case}
    expression = build_regex_from_schema(json.dumps(schema))
    valid = [jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)) for text in texts]
    seen[name] = [re.fullmatch(expression, text) is not None for text in texts], valid
    for text, admitted, right in zip(texts, *seen[name]):
        print(f"{name}: {text}: outlines-core {admitted}, jsonschema {right}")
first, *others = seen.values()
sys.exit(not (first == ([True, False], [False, True]) and all(one == ([False, True],) * 2 for one in others)))
PY
