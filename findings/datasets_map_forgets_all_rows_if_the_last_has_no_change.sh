#!/usr/bin/env bash
# datasets: a function of map that returns None leaves the data as they are, which is meant for functions that only
# look. A function that changes some rows and returns None for the others does not change some rows: the last row
# decides for all. If it has no change, the changes of all other rows are dropped, and nothing is said; if it has one
# and the first row had none, an error speaks of a missing attribute write. With one bad row less at the end of a file
# the same code works. Batches behave so too, and of several processes each decides for its part. A stream refuses such
# a function.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
HF_HUB_OFFLINE=1 HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset

datasets.disable_progress_bars()


def tenfold_if_odd(row):
    if row["x"] % 2:
        return {"x": row["x"] * 10}


def mapped(values, **options):
    try:
        return Dataset.from_dict({"x": values}).map(tenfold_if_odd, **options)["x"][:]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def streamed(values):
    try:
        return [row["x"] for row in Dataset.from_dict({"x": values}).to_iterable_dataset().map(tenfold_if_odd)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


last, first, none, stream = mapped([1, 3, 5, 2]), mapped([2, 1, 3]), mapped([1, 3, 5]), streamed([1, 3, 5, 2])
parts = mapped([1, 3, 5, 2], num_proc=2)
print("datasets", datasets.__version__)
print("guess: rows for which the function returns None are left, the others are changed, or an error says it is mixed")
print("1, 3, 5:   ", none)
print("1, 3, 5, 2:", last)
print("1, 3, 5, 2 in two processes:", parts)
print("2, 1, 3:   ", first)
print("1, 3, 5, 2 as a stream:", stream)
forgot = last == [1, 3, 5, 2] and none == [10, 30, 50] and isinstance(stream, str)
sys.exit(not (forgot and parts == [10, 30, 5, 2] and isinstance(first, str) and "write" in first))
PY
