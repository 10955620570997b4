#!/usr/bin/env bash
# pandas: read_json decides the type of a column by whether its strings look like numbers. Answers of a model that are
# written as strings, "007" and "1.10", are read as 7 and 1.1, and an id of twenty digits as a float, which is another
# id. One string that is no number keeps the whole column as text, so a small file, or the rows of one task, has other
# types than the rest. Numbers in a column named timestamp become dates. The numbers of the file themselves lose their
# last digits: precise_float and dtype=False are off and on by default. The json module keeps all of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pandas==3.1.1
"$folder/venv/bin/python" - <<'PY'
import io
import json
import sys

import pandas

rows = [
    {"answer": "007", "id": "12345678901234567891", "p": 0.12345678901234567},
    {"answer": "1.10", "id": "2", "p": 0.5},
]


def answers(rows, **options):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return pandas.read_json(io.StringIO(text), lines=True, **options).to_dict("list")


seen = answers(rows)
longer = answers([*rows, {"answer": "x = 3", "id": "y", "p": 0.5}])
kept = answers(rows, dtype=False, precise_float=True)
print("pandas", pandas.__version__)
print("guess: strings of JSON are strings, and numbers are those that Python's json reads")
print("seen: two rows:", seen)
print("seen: with a third one:", longer)
print("seen: dtype=False, precise_float=True:", kept)
wanted = {key: [row[key] for row in rows] for key in rows[0]}
sys.exit(
    seen["answer"] != [7, 1.1]
    or seen["id"] != [12345678901234567891.0, 2.0]
    or seen["p"][0] == rows[0]["p"]
    or longer["answer"] != ["007", "1.10", "x = 3"]
    or kept != wanted
)
PY
