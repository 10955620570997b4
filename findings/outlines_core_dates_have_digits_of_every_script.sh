#!/usr/bin/env bash
# outlines-core: the format date, and \d in a pattern, take the digits of every script, since the expressions are read
# by an engine for which \d is Unicode's. A model that answers in Arabic, Persian or Hindi may write the year in its own
# digits, and the guide lets it: the text is JSON, of the schema as far as the guide knows, and Python's date does not
# read it. Other parts of the same format, such as the month, take ASCII digits alone, and so does an integer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14
"$folder/venv/bin/python" - <<'PY'
import json
import sys
from datetime import date
from importlib import metadata

from outlines_core import Guide, Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

END = 256
vocabulary = Vocabulary(END, {bytes([byte]): [byte] for byte in range(1, END)})


def admits(schema, text):
    guide = Guide(Index(build_regex_from_schema(json.dumps(schema)), vocabulary))
    for token in text.encode():
        if token not in guide.get_tokens():
            return False
        guide.advance(token)
    return guide.is_finished() or END in guide.get_tokens()


def other(text, script=0x0660):
    """The digits in Arabic script."""
    return "".join(chr(script + int(letter)) if letter.isdigit() else letter for letter in text)


def read(parse, text):
    try:
        parse(text)
    except ValueError:
        return False
    return True


year, month = other("2024") + "-05-01", "2024-" + other("05") + "-01"
cases = {
    "date, ASCII": ({"type": "string", "format": "date"}, json.dumps("2024-05-01")),
    "date, year in Arabic digits": ({"type": "string", "format": "date"}, f'"{year}"'),
    "date, month in Arabic digits": ({"type": "string", "format": "date"}, f'"{month}"'),
    "pattern, Arabic digits": ({"type": "string", "pattern": r"^\d{4}$"}, f'"{other("2024")}"'),
    "integer, Arabic digits": ({"type": "integer"}, other("2024")),
}  # fmt: skip
print("outlines-core", metadata.version("outlines-core"))
print("guess: a date of a format has the digits 0 to 9")
seen = {name: admits(*case) for name, case in cases.items()}
for name, admitted in seen.items():
    print(f"{name}: admitted: {admitted}")
parsed = read(date.fromisoformat, "2024-05-01"), read(date.fromisoformat, year)
print("Python's date reads the two dates that were admitted:", *parsed)
sys.exit(not ([*seen.values()] == [True, True, False, True, False] and parsed == (True, False)))
PY
