#!/usr/bin/env bash
# OpenVINO: language models are exported with their cache inside, as a state. Calling the compiled model looks like
# calling a function, and keeps the state: the second prompt is read as the continuation of the first, with its tokens
# still attended to, and the call has no way to reset it. AsyncInferQueue, which spreads independent inputs over some
# requests, does the same: what an input gives depends on which ones its request had before. Nothing is said.
# infer_new_request begins anew at each call, and a request of one's own has reset_state.
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

# A model that adds what it is given to its state, as one adds keys and values to its cache, and returns the state.
inputs = op.parameter([1], np.float32)
state = op.read_value(op.constant(np.zeros(1, np.float32)), "cache", ov.Type.f32, ov.PartialShape([1]))
total = op.add(state, inputs)
model = ov.Model([op.result(total)], [op.assign(total, "cache")], [inputs])
compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
values = [np.array([value], np.float32) for value in (1, 10, 100, 1000)]

called = [float(compiled([value])[0][0]) for value in values]
queue, queued = ov.AsyncInferQueue(compiled, 1), []
queue.set_callback(lambda request, _: queued.append(float(request.get_output_tensor(0).data[0])))
for value in values:
    queue.start_async([value])
queue.wait_all()
anew = [float(compiled.infer_new_request([value])[0][0]) for value in values]
request, own = compiled.create_infer_request(), []
for value in values:
    request.reset_state()
    own.append(float(request.infer([value])[0][0]))
print("openvino", ov.__version__)
print("guess: a call, and an input of a queue, does not depend on those before it: 1, 10, 100, 1000")
print("calls:                          ", called)
print("AsyncInferQueue:                ", queued)
print("infer_new_request:              ", anew)
print("a request with reset_state:     ", own)
sys.exit(not (called == queued == [1, 11, 111, 1111] and anew == own == [1, 10, 100, 1000]))
PY
