#!/usr/bin/env bash
# NumPy and ml_dtypes: nan_to_num replaces NaN and infinity, and nansum, nanmean and nanstd leave NaN out. NumPy's
# functions do so for its own floating types; an array of ml_dtypes' bfloat16 or float8 is to them no floating type, and
# they return it as it was, or compute with NaN. nan_to_num gives NaN, nansum is NaN, nanargmax is the place of the NaN.
# isnan, nanmax and nanmedian of the same array are right. No error or warning says so: a guard against bad activations
# is a line without an effect.
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

functions = {name: getattr(np, name) for name in ("nan_to_num", "nansum", "nanmean", "nanargmax", "nanmedian", "isnan")}
seen = {}
print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__)
print("guess: what replaces NaN, or leaves it out, does it in every floating type")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        values = np.array([np.nan, 1, 3], np.float32).astype(dtype)
        results = {name: np.asarray(function(values)) for name, function in functions.items()}
        seen[dtype] = {name: result.astype(float).tolist() for name, result in results.items()}
        print(f"seen: {np.dtype(dtype).name}:", seen[dtype])
print("seen: warnings:", [str(one.message) for one in said])
own, *others = seen.values()
right = own == {
    "nan_to_num": [0, 1, 3],
    "nansum": 4,
    "nanmean": 2,
    "nanargmax": 2,
    "nanmedian": 2,
    "isnan": [1, 0, 0],
}
kept = all(np.isnan(other["nan_to_num"][0]) and np.isnan([other["nansum"], other["nanmean"]]).all() for other in others)
places = all(other["nanargmax"] == 0 and other["nanmedian"] == 2 and other["isnan"] == [1, 0, 0] for other in others)
sys.exit(not (right and kept and places and not said))
PY
