#!/usr/bin/env bash
# onnx: helper.make_tensor makes a constant, such as quantized weights, of a list of numbers. One beyond the type is an
# error for int8, and for int4 and uint4 it is wrapped: 8, the rounded largest weight of a scale that was a little too
# small, becomes -8, and 16 becomes 0. FLOAT8E4M3FN and FLOAT4E2M1 keep their largest value instead, and a NaN becomes
# 0 in the latter. A quantizer that forgets to clip is found out in 8 bits and writes weights of the other sign in 4.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import onnx
from onnx import TensorProto, helper, numpy_helper


def made(kind, values):
    """The values of the tensor that is made of these, or the name of the error."""
    try:
        tensor = helper.make_tensor("x", getattr(TensorProto, kind), [len(values)], values)
    except OverflowError as error:
        return type(error).__name__
    onnx.checker.check_tensor(tensor)
    return numpy_helper.to_array(tensor).astype(float).tolist()


cases = {
    ("INT8", (127, 128, -129)): "OverflowError",
    ("UINT8", (255, 256, -1)): "OverflowError",
    ("INT4", (7, 8, -9)): [7, -8, 7],
    ("UINT4", (15, 16, -1)): [15, 0, 15],
    ("FLOAT8E4M3FN", (448, 500, -1e9)): [448, 448, -448],
    ("FLOAT4E2M1", (6, 7, -9, float("nan"))): [6, 6, -6, 0],
}
print("onnx", onnx.__version__)
print("guess: what does not fit is an error, or the largest value, in all integers alike")
seen = {case: made(*case) for case in cases}
for (kind, values), result in seen.items():
    print(f"{kind} of {list(values)}: {result}")
sys.exit(seen != cases)
PY
