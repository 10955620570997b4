#!/usr/bin/env bash
# ONNX and ONNX Runtime: the operator Attention takes the keys and values of earlier tokens in two ways, joined with
# the new ones, or as past_key and past_value. With is_causal, a new token then sees all earlier ones if they are passed
# as past, and the first one alone if they are joined: query 0 is taken for the text's token 0. Without is_causal both
# give the same, and so they do where queries and keys are as many. Replacing the two inputs by a Concat, to keep the
# cache in one buffer, changes a decoding graph into one that reads the first token for every step.
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

random = np.random.default_rng(0)
query = random.standard_normal((1, 1, 1, 8), np.float32)
keys, values = random.standard_normal((2, 1, 1, 4, 8), np.float32)
scores = np.exp(query @ keys.swapaxes(2, 3) / np.sqrt(8))
all_tokens = scores / scores.sum() @ values
first_token = values[:, :, :1]


def attention(inputs, causal):
    """The outputs of ONNX Runtime and of ONNX's reference."""
    names = ["query", "key", "value", "", "past_key", "past_value"] if "past_key" in inputs else list(inputs)
    outputs = ["y", "present_key", "present_value"][: 3 if "past_key" in inputs else 1]
    node = helper.make_node("Attention", names, outputs, is_causal=causal)
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, None, 8]) for name in outputs]
    graph = helper.make_graph([node], "graph", shapes, results)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0], ReferenceEvaluator(made).run(None, inputs)[0]


joined = {"query": query, "key": keys, "value": values}
past = {"query": query, "key": keys[:, :, 3:], "value": values[:, :, 3:]}
past |= {"past_key": keys[:, :, :3], "past_value": values[:, :, :3]}
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
print("guess: a new token attends to all four, however the three earlier ones are passed")
right = True
for name, inputs, causal, expected in (
    ("joined, is_causal=0", joined, 0, all_tokens),
    ("as past, is_causal=1", past, 1, all_tokens),
    ("joined, is_causal=1", joined, 1, first_token),
):
    outputs = attention(inputs, causal)
    seen = ["all four" if np.allclose(y, all_tokens, atol=1e-5) else "the first alone" for y in outputs]
    print(f"{name}: ONNX Runtime attends to {seen[0]}, ONNX's reference to {seen[1]}")
    right &= all(np.allclose(y, expected, atol=1e-5) for y in outputs)
sys.exit(not right)
PY
