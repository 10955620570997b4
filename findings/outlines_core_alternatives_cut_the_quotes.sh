#!/usr/bin/env bash
# outlines-core: a pattern of a schema is put between two quotes, as it is. The bar of alternatives then reaches to the
# quotes: "a|b" becomes a quote and an a, or a b and a quote. What is admitted is half a string, which no JSON parser
# reads, and the two words that were meant are forbidden. In an object it cuts at the same place. "^" alone at the
# beginning stays in, where it can match nothing: no string at all is left. With parentheses, or in "^(a|b)$", all is
# right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14
"$folder/venv/bin/python" - <<'PY'
import json
import re
import sys
from importlib import metadata

from outlines_core.json_schema import build_regex_from_schema

texts = ['"yes"', '"no"', '"yes', 'no"']
print("outlines-core", metadata.version("outlines-core"))
print("guess: a pattern for yes and no admits the first two of", texts)
seen = {}
for pattern in ("yes|no", "^yes", "(yes|no)", "^(yes|no)$"):
    regex = build_regex_from_schema(json.dumps({"type": "string", "pattern": pattern}))
    seen[pattern] = [text for text in texts if re.fullmatch(regex, text)]
    print(f"seen: {pattern} becomes {regex} and admits", seen[pattern])
halves, both = texts[2:], texts[:2]
sys.exit(list(seen.values()) != [halves, [], both, both])
PY
