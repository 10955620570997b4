#!/usr/bin/env bash
# tensordict: save and load keep a batch, a replay buffer or the weights of a model in a folder. What load returns lies
# in the files: a change in place, to scale it, to mask it, or to assign a row, is a change of the files, and the next
# run loads it so. to("cpu") is no copy, and select, reshape and unbind are none either. torch.load with mmap=True maps
# the same numbers and keeps changes to itself, as safetensors does. Assigning a key changes the object alone, so that
# the same program writes or does not write by the spelling. An experiment that normalizes its data in place normalizes
# them once more at each start. clone() is a copy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensordict==0.15.3 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from importlib import metadata

import torch
from tensordict import TensorDict

folder = sys.argv[1]


def saved():
    TensorDict({"w": torch.ones(2, 2)}, batch_size=[2]).save(f"{folder}/data")
    torch.save({"w": torch.ones(2, 2)}, f"{folder}/data.pt")
    return TensorDict.load(f"{folder}/data")


def first(change):
    """The first number of the file after a change of what was loaded from it."""
    change(saved())
    return float(TensorDict.load(f"{folder}/data")["w"][0, 0])


def assign_a_key(data):
    data["w"] = data["w"] * 3


def assign_a_row(data):
    data[0] = TensorDict({"w": torch.full((2,), 3.0)}, batch_size=[])


changes = {
    'loaded["w"].mul_(3)': lambda data: data["w"].mul_(3),
    "loaded[0] = row": assign_a_row,
    'loaded.to("cpu").mul_(3)': lambda data: data.to("cpu").mul_(3),
    "loaded.unbind(0)[0].zero_()": lambda data: data.unbind(0)[0].zero_(),
    'loaded["w"] = loaded["w"] * 3': assign_a_key,
    "loaded.clone().mul_(3)": lambda data: data.clone().mul_(3),
}
print("tensordict", metadata.version("tensordict"), "torch", torch.__version__)
print("guess: a file has ones until something is saved to it")
found = {name: first(change) for name, change in changes.items()}
for name, value in found.items():
    print(f"{name}: the file has {value}")
mapped = torch.load(f"{folder}/data.pt", mmap=True)["w"].mul_(3)
again = torch.load(f"{folder}/data.pt", mmap=True)["w"]
print("torch.load(mmap=True), mul_(3): the file has", float(again[0, 0]))
values = list(found.values())
sys.exit(not (values == [3.0, 3.0, 3.0, 0.0, 1.0, 1.0] and float(mapped[0, 0]) == 3.0 and float(again[0, 0]) == 1.0))
PY
