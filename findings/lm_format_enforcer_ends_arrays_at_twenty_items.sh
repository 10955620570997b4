#!/usr/bin/env bash
# lm-format-enforcer: an array without maxItems has at most 20 items. The limit is a default of the library's own,
# which no schema states: after the twentieth item only "]" is allowed, whatever the model would write. A list of 25
# cities, of embeddings or of rows of a table is cut there, is valid, and looks complete. A maxItems, however large,
# or a minItems above 20 lifts the limit: a bound that was added to shorten lists makes longer ones possible.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check lm-format-enforcer==0.11.3 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib import metadata

from lmformatenforcer import JsonSchemaParser


def items_allowed(schema, items):
    """How many of the items can be written before the parser forbids a character; all of them if the array may end."""
    parser, text = JsonSchemaParser(schema), json.dumps(items)
    for at, character in enumerate(text):
        if character not in parser.get_allowed_characters():
            return text[:at].count(",") + 1
        parser = parser.add_character(character)
    return len(items) if parser.can_end() else None


def array(kind, **more):
    return {"type": "array", "items": {"type": kind}, **more}


numbers, words = list(range(25)), ["word"] * 25
seen = {
    "integers": items_allowed(array("integer"), numbers),
    "strings": items_allowed(array("string"), words),
    "any": items_allowed({"type": "array"}, numbers),
    "maxItems 1000": items_allowed(array("integer", maxItems=1000), numbers),
    "minItems 22": items_allowed(array("integer", minItems=22), numbers),
}
print("lm-format-enforcer", metadata.version("lm-format-enforcer"))
print("guess: 25 items can be written in an array whose schema has no maxItems")
for name, count in seen.items():
    print(f"seen, {name}: {count} of 25 items")
lifted = {"maxItems 1000": 25, "minItems 22": 25}
sys.exit(seen != {"integers": 20, "strings": 20, "any": 20} | lifted)
PY
