#!/usr/bin/env bash
# accelerate: gradients are accumulated over a number of batches, and the step then has their mean. At the end of an
# epoch a step is made with what is left, and its sum is still divided by the full number: with 9 batches and 8 to a
# step, the last one counts an eighth of what it would alone. The step is smaller, or with Adam has wrong moments, once
# an epoch. A number of batches that is a multiple, as a test would have, does not show it, and nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 accelerate==1.15.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import accelerate
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=8)


def steps(batches):
    """The steps of plain gradient descent where each batch has a gradient of 1."""
    model = nn.Linear(1, 1, bias=False)
    loader = DataLoader([torch.ones(1)] * batches, batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), loader)
    seen = []
    for batch in loader:
        before = model.weight.item()
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            seen.append(round(before - model.weight.item(), 3))
    return seen


print("accelerate", accelerate.__version__, "torch", torch.__version__)
print("guess: each step is 1, the mean of the gradients that it has")
seen = {batches: steps(batches) for batches in (8, 16, 9, 12)}
for batches, sizes in seen.items():
    print(f"seen: {batches} batches, 8 to a step: steps of {sizes}")
sys.exit(seen != {8: [1.0], 16: [1.0, 1.0], 9: [1.0, 0.125], 12: [1.0, 0.5]})
PY
