#!/usr/bin/env bash
# Keras: TorchModuleWrapper makes a torch module a layer of a Keras model. Calling a Keras model is inference: its own
# dropout is off unless one passes training=True. The wrapped module is in training mode in the same call: dropout is
# on, and batch normalization normalizes by the batch and changes its statistics, after eval() too. training=False or
# predict() turn it off for that call. Logits that are compared, exported or used as a teacher's are random, and an
# answer depends on the other rows of the batch; nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 keras==3.15.1
OMP_NUM_THREADS=1 KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PY'
import sys

import keras
import numpy as np
import torch
from keras.layers import TorchModuleWrapper
from torch import nn

inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)) * 5 + 3
norm = nn.BatchNorm1d(8)


def model(dropout):
    return keras.Sequential([keras.Input((8,)), dropout])


def changes(whole, **arguments):
    return not torch.equal(whole(inputs, **arguments), inputs)


own, wrapped = model(keras.layers.Dropout(0.5)), model(TorchModuleWrapper(nn.Dropout(0.5)))
print("keras", keras.__version__, "torch", torch.__version__)
print("guess: a call without training= is inference, for a wrapped module as for Keras's own layers")
seen = {
    "Keras's dropout, called": changes(own),
    "wrapped dropout, called": changes(wrapped),
    "wrapped dropout, training=False": changes(wrapped, training=False),
    "wrapped dropout, predict": not np.array_equal(wrapped.predict(inputs.numpy(), verbose=0), inputs.numpy()),
}
wrapped.eval()
seen["wrapped dropout, called after eval()"] = changes(wrapped)
whole = model(TorchModuleWrapper(norm))
before = norm.running_mean.clone()
whole(inputs)
seen["wrapped batch normalization, statistics after a call"] = not torch.equal(norm.running_mean, before)
for name, changed in seen.items():
    print(f"seen: {name}: {'changed' if changed else 'unchanged'}")
sys.exit(list(seen.values()) != [False, True, False, False, True, True])
PY
