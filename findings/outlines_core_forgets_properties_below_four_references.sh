#!/usr/bin/env bash
# outlines-core: a schema becomes a regular expression with at most a few levels of $ref. That limit is meant for recursive
# schemas, and counts every reference: in definitions that only lead to each other, as nested Pydantic models do, the
# innermost property is left out, required or not. The text is then of another shape than the schema asks for: what is
# valid cannot be written, what is written is not valid, and no error says so.
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


def schema(levels):
    """`levels` objects, each the required property of the one before, the last with an integer."""
    inner = {f"level{at}": {"$ref": f"#/$defs/level{at + 1}"} for at in range(levels)}
    made = {name: {"type": "object", "properties": {"in": value}, "required": ["in"]} for name, value in inner.items()}
    made[f"level{levels}"] = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    return {"$ref": "#/$defs/level0", "$defs": made}


def admitted(levels):
    """Whether the complete text is admitted, and the one that ends at the depth where the property is missing."""
    pattern = build_regex_from_schema(json.dumps(schema(levels)))
    whole = '{"in":' * levels + '{"x":1}' + "}" * levels
    cut = next((text for at in range(levels) if re.fullmatch(pattern, text := '{"in":' * at + "{}" + "}" * at)), None)
    jsonschema.validate(json.loads(whole), schema(levels))
    return bool(re.fullmatch(pattern, whole)), cut


few, many = admitted(2), admitted(6)
print("outlines-core", metadata.version("outlines-core"))
print("guess: definitions without recursion are followed to their end, or refused")
for levels, (whole, cut) in ((2, few), (6, many)):
    print(f"{levels} references deep: the valid text is admitted: {whole}; admitted without its last property: {cut}")
invalid = many[1] is not None and not jsonschema.Draft202012Validator(schema(6)).is_valid(json.loads(many[1]))
sys.exit(not (few == (True, None) and not many[0] and invalid))
PY
