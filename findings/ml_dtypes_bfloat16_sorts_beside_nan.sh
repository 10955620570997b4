#!/usr/bin/env bash
# NumPy and ml_dtypes: NumPy sorts NaN to the end, in every type of its own. An array of ml_dtypes' bfloat16 with a NaN
# is not sorted: the values before it and after it stay apart, and argsort gives the same order. A median, the k largest
# scores or a threshold that is read from such an array is wrong, and neither function says so; max and argmax of the
# same array do find the NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import ml_dtypes
import numpy as np

values = [3, np.nan, 1, 2, 0]
print("ml_dtypes", ml_dtypes.__version__, "numpy", np.__version__)
print("guess: sorted, 0 1 2 3 nan, in each type")
ordered = {}
for kind in (np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
    array = np.array(values, kind)
    by_sort, by_argsort = np.sort(array), array[np.argsort(array)]
    name = np.dtype(kind).name
    print(f"{name}: sort {by_sort}, argsort {by_argsort}, max {array.max()}, argmax {array.argmax()}")
    ordered[name] = [
        np.array_equal(each.astype(np.float32), [0, 1, 2, 3, np.nan], equal_nan=True) for each in (by_sort, by_argsort)
    ]
    ordered[name].append(bool(np.isnan(array.max())) and array.argmax() == 1)
right, wrong = [True, True, True], [False, False, True]
sys.exit(ordered != {"float16": right, "float32": right, "bfloat16": wrong, "float8_e4m3fn": wrong})
PY
