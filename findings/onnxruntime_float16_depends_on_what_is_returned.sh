#!/usr/bin/env bash
# ONNX Runtime: on an x86 CPU, a float16 graph is computed in float32, and what passes from one operator to the next is
# never rounded to float16. x + x - x is finite where x + x is beyond float16, though ONNX defines each result as
# float16, and ONNX's reference gives infinity. An output is rounded: returned together, the sum is infinite and the
# difference of it is not. A model that was checked on a CPU may overflow on other hardware, and looking at the values
# in between shows an overflow that the result does not have. All optimizations off, it is the same.
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
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

x = np.array([60000, 1000], np.float16)


def model(*outputs):
    nodes = [helper.make_node("Add", ["x", "x"], ["sum"]), helper.make_node("Sub", ["sum", "x"], ["difference"])]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2]) for name in ("x", *outputs)}
    graph = helper.make_graph(nodes, "graph", [values["x"]], [values[name] for name in outputs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def run(made, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [value.tolist() for value in session.run(None, {"x": x})]


levels = onnxruntime.GraphOptimizationLevel
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
print("guess: each operator's result is a float16, so that 60000 + 60000 - 60000 is infinite")
both = model("sum", "difference")
with np.errstate(over="ignore"):
    reference = [value.tolist() for value in ReferenceEvaluator(both).run(None, {"x": x})]
alone = [run(model("difference"), level) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL)]
seen = run(both, levels.ORT_ENABLE_ALL)
print("sum and difference by ONNX's reference:", *reference)
print("sum and difference by ONNX Runtime:", *seen)
print("the difference alone, without optimizations and with all:", *alone)
infinite = float("inf")
expected = [[infinite, 2000], [infinite, 1000]], [[infinite, 2000], [60000, 1000]], [[[60000, 1000]]] * 2
sys.exit((reference, seen, alone) != expected)
PY
