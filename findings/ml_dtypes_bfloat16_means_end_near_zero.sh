#!/usr/bin/env bash
# NumPy and ml_dtypes: NumPy sums float16 in parts, and means are taken in float32: a mean of many numbers is right. For
# ml_dtypes' bfloat16 both are computed one number after the other in bfloat16, which has 8 bits: at 256 a sum of ones
# stops, since 257 is not a number of it. The mean of 10,000 numbers around 2 is 0.2, and a softmax of 10,000 logits
# adds up to almost 4. Nothing is said, means over a few values are right, and a dot product of the same array is too.
# It matters to whoever takes statistics of weights or activations that came from JAX or a checkpoint as NumPy arrays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PY'
import sys

import ml_dtypes
import numpy as np

numbers = np.random.default_rng(0).normal(2, 1, 10_000)
means, sums = {}, {}
for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
    name = np.dtype(dtype).name
    values = numbers.astype(dtype)
    means[name] = float(values.mean())
    exponentials = np.exp(values - values.max())
    sums[name] = float((exponentials / exponentials.sum()).astype(np.float64).sum())
few = float(numbers[:8].astype(ml_dtypes.bfloat16).mean())
ones = np.ones(1000, ml_dtypes.bfloat16)
print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__)
print("guess: the mean of 10,000 numbers around 2 is near 2 in 8 bits as in 11, and probabilities add up to about 1")
print("seen: means", means)
print("seen: sums of the probabilities of a softmax", sums)
print(f"seen: 1000 ones in bfloat16 have the sum {ones.sum()} and the product with themselves {ones @ ones}")
print(f"seen: the mean of the first 8 numbers is {few}, and {numbers[:8].mean():.3f} in float64")
right = abs(means["float16"] - means["float64"]) < 0.01 and abs(sums["float16"] - 1) < 0.01
same_few = abs(few - numbers[:8].mean()) < 0.02
sys.exit(not (right and same_few and means["bfloat16"] < 0.5 and sums["bfloat16"] > 2 and ones.sum() == 256))
PY
