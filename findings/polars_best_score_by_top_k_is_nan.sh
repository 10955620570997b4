#!/usr/bin/env bash
# polars: of a column of scores with a NaN, as of a run that diverged, max and arg_max pass over it. sort, top_k and
# rank take NaN for the largest number, and a filter by score > 0.5 keeps it: the best run of a table is the right one
# by max, and the one that diverged by top_k(1). A null, as of a run without a score, is left out by all of these but
# sort, which puts it first of all, also from the largest down. Three usual ways to the best run give three runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check polars==2.1.0
"$folder/venv/bin/python" - <<'PY'
import sys

import polars as pl

table = pl.DataFrame({"run": ["a", "b", "c", "d"], "score": [0.4, float("nan"), 0.9, None]})
score, run = pl.col("score"), pl.col("run")
best = {
    "max": table.filter(score == score.max())["run"].to_list(),
    "arg_max": [table["run"][table["score"].arg_max()]],
    "sort": table.sort("score", descending=True)["run"].to_list()[:1],
    "sort, nulls last": table.sort("score", descending=True, nulls_last=True)["run"].to_list()[:1],
    "top_k": table.top_k(1, by="score")["run"].to_list(),
    "rank": table.filter(score.rank("min", descending=True) == 1)["run"].to_list(),
}
above = table.filter(score > 0.5)["run"].to_list()
print("polars", pl.__version__)
print("guess: the best run is one and the same by each way, c")
print("best run:", *(f"{way} {runs}," for way, runs in best.items()), "above 0.5:", above)
sys.exit([*best.values(), above] != [["c"], ["c"], ["d"], ["b"], ["b"], ["b"], ["b", "c"]])
PY
