#!/usr/bin/env bash
# outlines: Generator(model, list[str]) or dict[str, bool] makes an answer follow a Python type, and one reads it as JSON,
# or by ast.literal_eval as Python. It is neither. None, True and tuples are written as in Python, which JSON does not
# read. A string has no escapes and ends at the first quote: a quotation cannot be written, and a backslash at the end,
# as a path has it, or a line break is admitted as it is, which neither reader takes. Dates within a list have no quotes.
# Optional[str] is None without quotes or a text with them. JsonSchema, or a Pydantic model, is JSON.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines==1.3.3 outlines-core==0.2.14 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import ast
import datetime
import json
import re
import sys
from importlib import metadata
from typing import Optional

from outlines.types.dsl import python_types_to_terms, to_regex


def reads(reader, text):
    try:
        reader(text)
    except (ValueError, SyntaxError):
        return False
    return True


cases = [
    (dict[str, bool], '{"ready":True}'),
    (list[Optional[int]], "[1, None]"),
    (tuple[int, str], '(1, "a")'),
    (list[str], '["C:\\"]'),
    (list[str], '["two\nlines"]'),
    (list[datetime.date], "[2026-05-01]"),
    (Optional[str], "None"),
    (list[str], json.dumps(['say "yes"'])),
]
print("outlines", metadata.version("outlines"))
print("guess: what a type admits is read by one of json.loads and ast.literal_eval, and a quotation can be written")
seen = []
for kind, text in cases:
    admitted = re.fullmatch(to_regex(python_types_to_terms(kind)), text) is not None
    seen.append((admitted, reads(json.loads, text), reads(ast.literal_eval, text)))
    print(f"{kind}: {text!r} is {'admitted' if admitted else 'forbidden'}; JSON {seen[-1][1]}, Python {seen[-1][2]}")
python, neither = (True, False, True), (True, False, False)
sys.exit(seen != [python, python, python, neither, neither, neither, python, (False, True, True)])
PY
