#!/usr/bin/env bash
# json-repair: answers are repaired while they stream, or after a limit cut them. A cut true, false or null is not
# completed and not left out: it becomes a string of the letters that are there. "fals" is a string that is not empty,
# which counts as true in a condition: {"safe": fals} passes the check that false fails, at up to four steps of a
# stream, and so does "nul" for null. partial-json-parser, whose purpose is the same, gives False and None. Cut numbers
# are numbers in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check json-repair==0.64.4 partial-json-parser==0.2.1.1.post7
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib.metadata import version

import json_repair
import partial_json_parser

print("json-repair", version("json-repair"), "partial-json-parser", version("partial-json-parser"))
print("guess: a value that is cut is completed, or is left out")
seen = {}
for text in ('{"safe": f', '{"safe": fals', '{"safe": false', '{"safe": nul', '{"safe": tru', '{"safe": 12'):
    ours, other = json_repair.loads(text), partial_json_parser.loads(text)
    seen[text] = ours.get("safe"), other.get("safe")
    print(f"{text}: {ours}, which counts as {bool(ours.get('safe'))}; partial-json-parser: {other}")
expected = [("f", False), ("fals", False), (False, False), ("nul", None), ("tru", True), (12, 12)]
sys.exit(list(seen.values()) != expected)
PY
