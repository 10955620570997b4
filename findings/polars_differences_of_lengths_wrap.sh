#!/usr/bin/env bash
# polars: the length of a string or of a list, and a count of rows, are unsigned numbers of 32 bits, and so is what one
# subtracts: an answer that is one character shorter than its reference is 4294967295 longer, and the mean difference of
# a table of answers is some billions. A sum of a column of Int32 or UInt32 wraps in the same way, where Int8 and Int16
# are widened: the lengths of 4 GiB of text have the sum 0. No error or warning; numpy and pandas widen
# and count below zero. A cast to pl.Int64 before helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check polars==2.1.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy
import polars as pl

table = pl.DataFrame({"answer": ["yes", "a dog"], "reference": ["yes.", "a dog"], "tokens": [[1, 2], [3]]})
longer = pl.col("answer").str.len_chars() - pl.col("reference").str.len_chars()
differences = table.select(longer)["answer"]
tokens = table.select(pl.col("tokens").list.len() - 2)["tokens"].to_list()
missing = table.select(pl.len() - 3).item()
signed = pl.col("answer").str.len_chars().cast(pl.Int64) - pl.col("reference").str.len_chars()
cast = table.select(signed)
sums = {str(kind): int(pl.Series([top, 1], dtype=kind).sum())
        for kind, top in ((pl.Int16, 2**15 - 1), (pl.Int32, 2**31 - 1), (pl.UInt32, 2**32 - 1))}  # fmt: skip
whole = int(numpy.array([2**31 - 1, 1], numpy.int32).sum())
print("polars", pl.__version__, "numpy", numpy.__version__)
print("guess: 'yes' is -1 characters longer than 'yes.', and a sum of a column does not wrap")
print("characters longer:", differences.to_list(), "mean", differences.mean())
print("characters longer, with a cast:", cast["answer"].to_list())
print("tokens above two:", tokens, "; rows above three:", missing)
print("largest number and 1:", sums, "; numpy, of int32:", whole)
low = 2**32 - 1
same = (differences.to_list(), tokens, missing) == ([low, 0], [0, low], low) and cast["answer"].to_list() == [-1, 0]
sys.exit(not (same and sums == {"Int16": 2**15, "Int32": -(2**31), "UInt32": 0} and whole == 2**31))
PY
