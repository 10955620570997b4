#!/usr/bin/env bash
# OpenVINO: an embedding is a Gather of rows by ids. An id beyond the table is an error in PyTorch and NumPy; OpenVINO
# returns a row of zeros for it. A vocabulary that was extended without its embedding, a pad token of -100, or ids of
# another tokenizer, all run, and give a model a token that it never saw, without an error or a warning. A negative id
# counts from the end, as in NumPy, as long as it is within the table. A log-probability that is picked by such a label
# is 0: a probability of 1.
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

table = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def rows(table, ids):
    inputs = op.parameter([len(ids)], np.int64)
    model = ov.Model([op.gather(op.constant(table), inputs, 0)], [inputs])
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([np.array(ids, np.int64)])[0]


def refused(ids):
    try:
        table[ids]
    except IndexError:
        return True
    return False


known, unknown = rows(table, [0, 3, -1]), rows(table, [4, 1000, -5, -100])
inside, beyond = rows(np.log(np.array([0.1, 0.2, 0.7], np.float32)), [2, 3])
print("openvino", ov.__version__)
print("guess: ids beyond a table of 4 rows are refused, as NumPy does:", refused([4]) and refused([-5]))
print("ids 0, 3, -1:", known.tolist())
print("ids 4, 1000, -5, -100:", unknown.tolist())
print(f"log-probability of label 2: {inside:.4f}, of label 3, which does not exist: {beyond}")
right = np.array_equal(known, table[[0, 3, -1]]) and abs(inside - np.log(0.7)) < 1e-6
sys.exit(not (right and refused([4]) and refused([-5]) and not unknown.any() and beyond == 0))
PY
