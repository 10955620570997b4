#!/usr/bin/env bash
# NNCF: quantize and compress_weights both take a model and return one. quantize leaves the one that it was given as it
# was. compress_weights changes it, of OpenVINO or PyTorch, and returns the same object: comparing the compressed model
# with the original in one process compares it with itself, with an error of exactly 0. A second call with another mode,
# as in a sweep, finds nothing left to compress, and int4 after int8 is int8, without an error or a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check openvino==2026.4.1 nncf==3.4.0
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY' 2> >(tail -n 3 >&2)
import logging
import sys

import nncf
import numpy as np
import openvino
import torch
from nncf import CompressWeightsMode
from torch import nn

nncf.set_log_level(logging.WARNING)
inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
int4 = {"mode": CompressWeightsMode.INT4_SYM, "group_size": 32, "all_layers": True}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, values):
        return self.second(torch.relu(self.first(values)))


def made(kind):
    torch.manual_seed(0)
    model = Model().eval()
    return openvino.convert_model(model, example_input=inputs) if kind == "openvino" else model


def outputs(model):
    if isinstance(model, openvino.Model):
        return openvino.Core().compile_model(model, "CPU")(inputs.numpy())[0]
    with torch.no_grad():
        return model(inputs).numpy()


def compressed(model, **how):
    data = {"dataset": nncf.Dataset([inputs])} if isinstance(model, nn.Module) else {}
    return nncf.compress_weights(model, **how, **data)


print("nncf", nncf.__version__, "openvino", openvino.__version__, "torch", torch.__version__)
print("guess: the model that was given stays as it was, with both functions")
original = made("openvino")
before = outputs(original)
nncf.quantize(original, nncf.Dataset([inputs.numpy()]), subset_size=1)
kept = np.abs(outputs(original) - before).max()
print(f"seen: openvino: the original is off by {kept:.4f} after quantize")
seen = [kept == 0]
for kind in ("openvino", "torch"):
    model = made(kind)
    smaller = compressed(model, **int4)
    changed, apart = np.abs(outputs(model) - before).max(), np.abs(outputs(model) - outputs(smaller)).max()
    seen.append(changed > 0.01 and apart == 0)
    print(f"seen: {kind}: the original is off by {changed:.4f} after compress_weights, and by {apart} from the result")
int8 = compressed(made("openvino"))
first = outputs(int8)
second = np.abs(outputs(compressed(int8, **int4)) - first).max()
once = np.abs(outputs(compressed(made("openvino"), **int4)) - first).max()
print(f"seen: openvino: int4 is {once:.4f} from int8, and after int8 {second:.4f}")
sys.stdout.flush()
sys.exit(not (all(seen) and second == 0 and once > 0.01))
PY
