#!/usr/bin/env bash
# accelerate: load_checkpoint_in_model takes a dtype, described as the type that weights are converted to when they are
# loaded. Without a device_map it has no effect: the model is float32, with twice the memory and other logits than the
# bfloat16 that was asked for. With device_map={"": "cpu"}, which names the place where the model already is, it is
# followed, for buffers that were kept in float64 on purpose too. Neither case says anything.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 accelerate==1.15.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import accelerate
import torch
from accelerate import load_checkpoint_in_model
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))


file = sys.argv[1] + "/pytorch_model.bin"
torch.save(Model().state_dict(), file)


def types(**options):
    model = Model()
    load_checkpoint_in_model(model, file, **options)
    return str(model.layer.weight.dtype)[6:], str(model.scale.dtype)[6:]


print("accelerate", accelerate.__version__, "torch", torch.__version__)
print("guess: with dtype=torch.bfloat16 the weights are bfloat16, wherever the model is")
seen = {
    "no dtype": types(),
    "dtype=torch.bfloat16": types(dtype=torch.bfloat16),
    'dtype=torch.bfloat16, device_map={"": "cpu"}': types(dtype=torch.bfloat16, device_map={"": "cpu"}),
}
for options, (weight, buffer) in seen.items():
    print(f"seen: {options}: weights {weight}, a float64 buffer {buffer}")
kept = ("float32", "float64")
sys.exit(list(seen.values()) != [kept, kept, ("bfloat16", "bfloat16")])
PY
