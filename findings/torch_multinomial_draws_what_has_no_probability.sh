#!/usr/bin/env bash
# PyTorch: torch.multinomial without replacement draws different tokens, as a tree of drafts or a beam needs them. If
# fewer tokens have a probability than are asked for, as after top-k or a grammar, the others are drawn from those of
# probability zero, without an error: forbidden tokens enter the tree. Its documentation asks for enough nonzero
# elements and nothing checks it. With replacement they are never drawn, and numpy's Generator.choice raises.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
import torch

logits = torch.arange(50.0)
filtered = logits.masked_fill(logits < 48, -torch.inf).softmax(0)  # top-k of 2
exact = np.array([0.0] * 48 + [0.25, 0.75])
print("torch", torch.__version__, "numpy", np.__version__)
print("guess: four different tokens of two that are possible are an error")
torch.manual_seed(0)
drawn = [torch.multinomial(filtered, 4).tolist() for _ in range(200)]
impossible = sum(float(filtered[token]) == 0 for row in drawn for token in row)
print(f"seen: {drawn[0]}, {drawn[1]}, ...: {impossible} of {4 * len(drawn)} tokens have probability zero")
again = torch.multinomial(filtered, 800, replacement=True)
print("with replacement:", sum(float(filtered[token]) == 0 for token in again), "of 800")
try:
    by_numpy = str(np.random.default_rng(0).choice(50, 4, replace=False, p=exact))
except ValueError as error:
    by_numpy = f"error: {error}"
print("numpy:", by_numpy)
sys.exit(not (impossible == 400 and bool((filtered[again] > 0).all()) and by_numpy.startswith("error")))
PY
