#!/usr/bin/env bash
# json-repair: a model may write several JSON objects in one answer, one a line or with words between them, as for two
# calls of tools. If their keys or types differ, loads gives a list; if they are alike, it takes each for a
# new version of the one before, and gives the last alone, as an object and not as a list. Asked for the weather of
# three cities, a model is answered for one, and no error or log says so. Two calls whose arguments have other names
# are both kept, so that a test with two different tools passes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check json-repair==0.64.4
"$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib.metadata import version

import json_repair


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


cities = [call("weather", city=city) for city in ("Paris", "Rome", "Oslo")]
mixed = [call("weather", city="Paris"), call("route", start="Paris", end="Rome")]
print("json-repair", version("json-repair"))
print("guess: each object of an answer is returned, in a list")
seen = {}
for name, calls in {"three calls of one tool": cities, "calls of two tools": mixed}.items():
    for between in ("\n", "\nand then\n"):
        seen[name, between] = json_repair.loads(between.join(map(json.dumps, calls)))
        print(f"{name}, with {between!r} between them: {json.dumps(seen[name, between])}")
lists = [seen["calls of two tools", between] == mixed for between in ("\n", "\nand then\n")]
last = [seen["three calls of one tool", between] == cities[-1] for between in ("\n", "\nand then\n")]
sys.exit(not (all(lists) and all(last)))
PY
