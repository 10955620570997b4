#!/usr/bin/env bash
# datasets: map may replace a column, and its new values get the type that the column had, wherever they can be cast. A
# number that is written with zeros before it, "007", is the number 7 again, a label that becomes "true" is the boolean
# True, and 1.5 rounded by Python's round is a float. "x7" or "1.5" in place of an integer cannot be cast, and then the
# type is new: whether a function's strings stay strings depends on their contents. The same values as a new column, or
# with features=, are kept. Answers that were formatted for comparison with a text no longer equal it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_HOME="$folder/cache" "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset, Features, Value

datasets.disable_progress_bars()


def mapped(old, function, name="x", **more):
    """The values after a map that applies the function to column x, and writes to column `name`."""
    return Dataset.from_dict({"x": old}).map(lambda row: {name: function(row["x"])}, **more)[name][:]


cases = {
    "7 and 8 by f'{x:03d}'": ([7, 8], lambda x: f"{x:03d}"),
    "True and False by str(x).lower()": ([True, False], lambda x: str(x).lower()),
    "1.4 and 2.6 by round": ([1.4, 2.6], round),
    "7 and 8 by f'x{x}'": ([7, 8], lambda x: f"x{x}"),
    "7 and 8 by x / 2": ([7, 8], lambda x: x / 2),
}
print("datasets", datasets.__version__)
print("guess: the column has what the function returned")
kept = {}
for name, (old, function) in cases.items():
    new = [function(value) for value in old]
    seen = mapped(old, function)
    kept[name] = seen == new and list(map(type, seen)) == list(map(type, new))
    print(f"{name}: returned {new}, in the column {seen}")
old, function = cases["7 and 8 by f'{x:03d}'"]
column = mapped(old, function, "y")
declared = mapped(old, function, features=Features({"x": Value("string")}))
print(f"007 and 008 as a new column: {column}, with features=: {declared}")
sys.exit(not (list(kept.values()) == [False, False, False, True, True] and column == declared == ["007", "008"]))
PY
