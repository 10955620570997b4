#!/usr/bin/env bash
# NumPy and ml_dtypes: since NumPy 2 a Python number takes the type of the array that it meets: float16 times 0.5 is
# float16. An array of ml_dtypes' bfloat16 times 0.5 becomes float32, and one of float8 does too: twice or four times
# the memory, and values that were not rounded as the recipe says, from the first scale or epsilon on. Times 2, a Python
# int, the type stays, and so it does in place (*=): whether a scale is written 2 or 2.0 decides.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import ml_dtypes
import numpy as np


def kinds(kind):
    """The types of an array of this type times a Python float, times a Python int, in place, and plus itself."""
    array = np.ones(2, kind)
    place = array.copy()
    place *= 2.0
    return [str(each.dtype) for each in (array * 2.0, array * 2, place, array + array)]


print("ml_dtypes", ml_dtypes.__version__, "numpy", np.__version__)
print("guess: with a Python number, an array keeps its type")
seen = {np.dtype(kind).name: kinds(kind) for kind in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)}
for name, each in seen.items():
    print(f"{name}: times 2.0 {each[0]}, times 2 {each[1]}, in place {each[2]}, plus itself {each[3]}")
right = {name: ["float32", name, name, name] for name in ("bfloat16", "float8_e5m2")}
sys.exit(seen != {"float16": ["float16"] * 4, **right})
PY
