#!/usr/bin/env bash
# ONNX Runtime: a NaN among logits is treated in three ways. ArgMax takes it for the largest, ReduceMax passes it over,
# and TopK orders what comes before it and after it apart from each other: the two largest of 1, NaN, 3, 2 are 1 and
# NaN, and a row's best number may be missing. ONNX's reference takes NaN for the largest in all three. A check of the
# maximum finds no NaN in logits whose greedy token is the NaN's, and the k best that a sampler gets are others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

logits = np.array([1, np.nan, 3, 2], np.float32)


def run(operator, kind, shape, constants=(), **attributes):
    """The first output of the operator, by ONNX Runtime and by ONNX's reference."""
    outputs = ["y", "indices"] if operator == "TopK" else ["y"]
    node = helper.make_node(operator, ["x", *(constant.name for constant in constants)], outputs, **attributes)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    results = [helper.make_tensor_value_info("y", kind, shape)]
    graph = helper.make_graph([node], "graph", [given], results, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return str(session.run(None, {"x": logits})[0]), str(ReferenceEvaluator(made).run(None, {"x": logits})[0])


print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
print("guess: the three operators agree on where a NaN belongs")
seen = {
    "ArgMax": run("ArgMax", TensorProto.INT64, [], keepdims=0),
    "ReduceMax": run("ReduceMax", TensorProto.FLOAT, [], keepdims=0),
    "TopK": run("TopK", TensorProto.FLOAT, [2], [numpy_helper.from_array(np.array([2]), "k")]),
}
for operator, (ours, reference) in seen.items():
    print(f"{operator} of {logits}: {ours}, by ONNX's reference {reference}")
expected = {"ArgMax": ("1", "1"), "ReduceMax": ("3.0", "nan"), "TopK": ("[ 1. nan]", "[nan  3.]")}
sys.exit(seen != expected)
PY
