#!/usr/bin/env bash
# OpenVINO: a NaN in a network passes through PyTorch's and NumPy's functions, and shows in the output that something
# overflowed before. On an x86 CPU, Relu and Maximum of OpenVINO return the other number, Clamp its lower bound, and
# ReduceMax the largest of the rest: NaN becomes 0 or -1, and the output is finite. A check of the logits finds nothing,
# greedy decoding goes on with some token, and a comparison with the original model shows a large error at a place that
# has none. Sums, products, Softmax and Gelu keep it.
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

values = np.array([1, np.nan, 3, 2], np.float32)


def run(make):
    inputs = op.parameter([4], np.float32)
    compiled = ov.Core().compile_model(ov.Model([make(inputs)], [inputs]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([values])[0]


zero = op.constant(np.float32(0))
lost = {
    "Relu": (run(op.relu), np.maximum(values, 0)),
    "Maximum with 0": (run(lambda inputs: op.maximum(inputs, zero)), np.maximum(values, 0)),
    "Clamp to -1 and 5": (run(lambda inputs: op.clamp(inputs, -1, 5)), np.clip(values, -1, 5)),
    "ReduceMax": (run(lambda inputs: op.reduce_max(inputs, np.array([0]), False)), np.max(values)),
}
kept = {
    "ReduceSum": run(lambda inputs: op.reduce_sum(inputs, np.array([0]), False)),
    "Multiply by 0": run(lambda inputs: op.multiply(inputs, zero)),
    "Softmax": run(lambda inputs: op.softmax(inputs, 0)), "Gelu": run(lambda inputs: op.gelu(inputs, "erf")),
}  # fmt: skip
print("openvino", ov.__version__)
print("guess: a result that depends on a NaN is NaN, as NumPy's is")
for name, (seen, numpy) in lost.items():
    print(f"{name}: {seen.tolist()}, NumPy {numpy.tolist()}")
for name, seen in kept.items():
    print(f"{name}: {seen.tolist()}")
finite = all(np.isfinite(seen).all() and np.isnan(numpy).any() for seen, numpy in lost.values())
sys.exit(not (finite and all(np.isnan(seen).any() for seen in kept.values())))
PY
