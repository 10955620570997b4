#!/usr/bin/env bash
# datasets: a column declared and stored as float64 comes back as float32 in the formats "numpy" and "torch", and with it
# what is computed from it; plain rows, Arrow and pandas have all digits. Whole numbers keep 64 bits. It matters for
# log-probabilities, times and numbers above 16,777,216 that are kept as floats: sums over a long text lose what was
# stored, and two formats of one table disagree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0 pandas==2.3.3
HF_HUB_OFFLINE=1 HF_HOME="$folder/cache" "$folder/venv/bin/python" - <<'PY'
import sys

import datasets
from datasets import Dataset, Features, Value

values = [0.1, 1764357600.25, 16777217.0]
table = Dataset.from_dict({"value": values}, features=Features({"value": Value("float64")}))
numpy = table.with_format("numpy")["value"][:]
pandas = table.with_format("pandas")["value"][:]
print("datasets", datasets.__version__, "stored as", table.features["value"])
print("guess: the formats change the container, and a float64 column is an array of float64")
print("seen: numpy:", numpy.dtype, numpy.tolist())
print("seen: pandas:", pandas.dtype, list(pandas), "rows:", list(table["value"]))
exact = list(pandas) == values and list(table["value"]) == values
sys.exit(not (str(numpy.dtype) == "float32" and numpy.tolist() != values and exact))
PY
