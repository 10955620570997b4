#!/usr/bin/env bash
# NumPy and ml_dtypes: NumPy adds up small integers as int64: the sum of 100 threes in int8 is 300. An array of
# ml_dtypes' int4 or uint4 is added up in four bits: the sum of 100 threes is -4, their mean is 0, the difference of 7
# and -8 is -1, and a mean over quantized weights, a row's sum for a zero point or a histogram's total is a number
# between -8 and 7. matmul of the same array works in eight bits, and wraps there. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PY'
import sys
import warnings

import ml_dtypes
import numpy as np

seen = {}
print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__)
print("guess: 100 threes have the sum 300 and the mean 3, in any type of integers")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for dtype in (np.int8, ml_dtypes.int4, ml_dtypes.uint4):
        threes = np.full(100, 3, dtype)
        product = threes[None] @ threes[:, None]
        seen[np.dtype(dtype).name] = [float(threes.sum()), float(threes.mean()), float(product[0, 0])]
        print(f"seen: {np.dtype(dtype).name}: sum {threes.sum()}, mean {threes.mean()}, product {product[0, 0]}")
print("seen: warnings:", [str(one.message) for one in said])
sys.exit(seen != {"int8": [300, 3, -124], "int4": [-4, 0, -124], "uint4": [12, 0, -124]} or bool(said))
PY
