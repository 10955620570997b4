#!/usr/bin/env bash
# PyTorch and ml_dtypes: float8_e8m0fnu holds the scales of MXFP4 and MXFP8: powers of two, and neither a sign nor a
# zero. Casting a number that it cannot hold gives NaN in ml_dtypes. PyTorch drops the sign, -2.5 becomes 2, and makes
# zero 5.9e-39: a scale with the wrong sign, or that of a block of zeros, is a plausible number, and a check for NaN
# finds nothing. Both agree on what lies between two powers: it is rounded to the nearest, 6 up to 8.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 ml_dtypes==0.6.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import math
import sys

import ml_dtypes
import numpy as np
import torch

values = [-2.5, -1.0, 0.0, 1.0, 2.5, 6.0, 7.9]
in_torch = torch.tensor(values).to(torch.float8_e8m0fnu).float().tolist()
in_numpy = np.array(values, np.float32).astype(ml_dtypes.float8_e8m0fnu).astype(np.float32).tolist()
print("torch", torch.__version__, "ml_dtypes", ml_dtypes.__version__)
print("guess: a number below or at zero is none of this type, and becomes NaN in both")
for value, one, other in zip(values, in_torch, in_numpy):
    print(f"seen: {value} is {one:.4g} in torch and {other:.4g} in ml_dtypes")
same = in_torch[3:] == in_numpy[3:] == [1, 2, 8, 8]
sys.exit(not (same and in_torch[:3] == [2, 1, 2**-127] and all(map(math.isnan, in_numpy[:3]))))
PY
