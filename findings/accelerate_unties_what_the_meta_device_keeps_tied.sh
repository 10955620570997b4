#!/usr/bin/env bash
# accelerate: init_empty_weights and torch.device("meta") are both described as making a model without memory, and are
# used in each other's place. A head that a module ties to its embedding in __init__ stays tied on the meta device, and
# is a parameter of its own under init_empty_weights: a loader that fills every parameter then asks the file for a
# tensor that it does not hold, and memory is planned for both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 accelerate==1.15.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import accelerate
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight


def made(context):
    with context:
        model = Tied()
    return model.head.weight is model.embed.weight, len(list(model.parameters()))


meta = made(torch.device("meta"))
empty = made(accelerate.init_empty_weights())
print("accelerate", accelerate.__version__, "torch", torch.__version__)
print("guess: both leave the head tied to the embedding, one parameter")
for name, (tied, count) in {"torch.device('meta')": meta, "init_empty_weights": empty}.items():
    print(f"{name}: tied {tied}, parameters {count}")
sys.exit((meta, empty) != ((True, 1), (False, 2)))
PY
