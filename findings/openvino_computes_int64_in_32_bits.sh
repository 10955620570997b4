#!/usr/bin/env bash
# OpenVINO: a graph may declare int64 and float64, which is what most exporters write for ids, positions and lengths.
# On a CPU both are computed in 32 bits: the inputs are cut, the outputs are declared, and returned, as int64 and
# float64. 2^31 - 1 plus 1 is negative, an id of 2^33 + 5 is 5, 1 + 1e-12 is 1, and nothing is said. A hash of tokens,
# as in embeddings of n-grams or watermarks, has other values than in training, and so has a time in milliseconds or a
# count in bytes. Small ids, as tests have, are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check openvino==2026.4.1 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import openvino as ov
from openvino import opset13 as op


def run(kind, values, make):
    inputs = op.parameter([len(values)], kind)
    compiled = ov.Core().compile_model(ov.Model([make(inputs)], [inputs]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([np.array(values, kind)])[0]


def constant(value, kind):
    return op.constant(np.array(value, kind))


whole, real = np.int64, np.float64
ids = [7, 151_935, 2**31 - 1, 2**33 + 5]
factor, buckets = 1_000_003, 65_536
added = run(whole, ids, lambda inputs: op.add(inputs, constant(1, whole)))
hashed = run(
    whole, ids, lambda inputs: op.floor_mod(op.multiply(inputs, constant(factor, whole)), constant(buckets + 1, whole))
)
summed = run(real, [1.0, 16_777_216.0], lambda inputs: op.add(inputs, constant(1e-12, real)))
counted = run(real, [16_777_216.0], lambda inputs: op.add(inputs, constant(1.0, real)))
print("openvino", ov.__version__)
print("guess: sums and products of int64 and float64 are NumPy's")
print("plus 1, NumPy   ", (np.array(ids) + 1).tolist())
print("plus 1, OpenVINO", added.tolist(), added.dtype)
print("hashes, NumPy   ", (np.array(ids) * factor % (buckets + 1)).tolist())
print("hashes, OpenVINO", hashed.tolist(), hashed.dtype)
print("1 + 1e-12 is 1:", summed[0] == 1, "and 2^24 + 1 is", counted[0], counted.dtype)
cut = added.tolist() == [8, 151_936, -(2**31), 6] and added.dtype == whole and counted.dtype == real
other = (hashed != np.array(ids) * factor % (buckets + 1)).tolist()
sys.exit(not (cut and other[0] is False and any(other) and summed[0] == 1 and counted[0] == 2**24))
PY
