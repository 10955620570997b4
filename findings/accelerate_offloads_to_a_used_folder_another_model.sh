#!/usr/bin/env bash
# accelerate: disk_offload and dispatch_model write weights to a folder, and the model reads them from there at each
# forward. If the folder has been used before, nothing is written: a second model of the same shapes, such as the next
# checkpoint or a fine-tuned form of the first, then computes with the first one's weights, without a word. Two models
# in one process that share a folder are one model, and so are two runs with a fixed path. load_checkpoint_and_dispatch
# writes the folder anew.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 accelerate==1.15.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY' 2>"$folder/log"
import copy
import sys

import accelerate
import torch
from accelerate import disk_offload, dispatch_model, load_checkpoint_and_dispatch
from torch import nn

torch.manual_seed(0)
x = torch.randn(3, 8)
map_of_devices = {"0": "cpu", "1": "disk"}


def by_disk_offload(model, where, _):
    return disk_offload(model, where, execution_device="cpu")


def by_dispatch_model(model, where, _):
    return dispatch_model(model, map_of_devices, offload_dir=where, main_device="cpu")


def by_checkpoint(model, where, file):
    return load_checkpoint_and_dispatch(model, file, device_map=map_of_devices, offload_folder=where)


def second_computes(offload):
    """Two models are offloaded to one folder; whose output the second one gives."""
    outputs = []
    for number in range(2):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        file = f"{sys.argv[1]}/{number}.bin"
        torch.save(model.state_dict(), file)
        first_layer = outputs[0][1] if number and offload is not by_disk_offload else None
        plain = copy.deepcopy(model)
        outputs.append((plain, plain[0]))
        offloaded = offload(model, f"{sys.argv[1]}/{offload.__name__}", file)
        seen = offloaded(x)
    if torch.allclose(seen, outputs[1][0](x)):
        return "its own"
    of_first = outputs[0][0] if first_layer is None else nn.Sequential(outputs[1][0][0], outputs[0][0][1])
    return "the first one's" if torch.allclose(seen, of_first(x)) else "another"


print("accelerate", accelerate.__version__, "torch", torch.__version__)
print("guess: the second model computes with the weights that it has, or its offloading raises")
seen = {offload.__name__: second_computes(offload) for offload in (by_disk_offload, by_dispatch_model, by_checkpoint)}
for way, whose in seen.items():
    print(f"seen: {way}: the layers on disk have weights that are {whose}")
sys.exit(list(seen.values()) != ["the first one's", "the first one's", "its own"])
PY
