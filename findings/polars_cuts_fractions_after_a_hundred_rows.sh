#!/usr/bin/env bash
# polars: DataFrame(rows), with a list of dictionaries, takes the type of a column from the first hundred rows. Scores
# that are 0 or 1 there make a column of integers, and each later score is cut to one: 0.9 is 0, and the mean is
# another. A key that comes first in row 101, such as "error", is dropped with its values. strict=True, the default,
# says nothing, although a text among integers is an error, and so is a fraction among them in a list for one column.
# read_ndjson drops the key too, and refuses the fraction. infer_schema_length=None reads all rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check polars==2.1.0
"$folder/venv/bin/python" - <<'PY'
import sys

import polars as pl

rows = [{"score": row % 2} for row in range(100)] + [{"score": 0.9, "error": "timeout"}] * 100


def seen(**more):
    table = pl.DataFrame(rows, **more)
    return round(table["score"].mean(), 3), table.columns


mean = round(sum(row["score"] for row in rows) / len(rows), 3)
plain, whole = seen(), seen(infer_schema_length=None)
print("polars", pl.__version__)
print(f"guess: the mean score is {mean}, and there are two columns")
print("seen:", *plain)
print("with infer_schema_length=None:", *whole)
sys.exit(not (plain == (0.25, ["score"]) and whole == (mean, ["score", "error"]) == (0.7, ["score", "error"])))
PY
