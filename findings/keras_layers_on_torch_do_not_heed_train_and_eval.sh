#!/usr/bin/env bash
# Keras: with the backend torch a Keras model is a torch.nn.Module, has parameters() and goes into a training loop or
# another module. train() sets its mark, and nothing else: dropout is off and batch normalization gathers no statistics,
# since Keras layers follow the argument training= of the call alone, whose default is inference. A loop that is right
# for every other module trains without dropout, and normalizes by a mean of 0 and a variance of 1 for good. eval()
# does not turn off what training=True turned on. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 keras==3.15.1
OMP_NUM_THREADS=1 KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PY'
import sys

import keras
import torch
from torch import nn


class Whole(nn.Module):
    def __init__(self, dropout, norm):
        super().__init__()
        self.dropout, self.norm = dropout, norm

    def forward(self, inputs):
        return self.dropout(self.norm(inputs))


inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)) * 5 + 3
layers = {
    "torch": (nn.Dropout(0.5), nn.BatchNorm1d(8)),
    "keras": (keras.layers.Dropout(0.5), keras.layers.BatchNormalization()),
}
seen = {}
print("keras", keras.__version__, "torch", torch.__version__, "backend", keras.backend.backend())
print("guess: after train() a module drops out and gathers statistics, whichever library its layers are of")
for name, parts in layers.items():
    model = Whole(*parts)
    model(inputs)
    model.train()
    dropped = not torch.equal(model(inputs), model(inputs))
    norm = model.norm
    mean = norm.running_mean if name == "torch" else norm.moving_mean.value
    seen[name] = [norm.training, dropped, mean.abs().max().item() > 0]
    print(f"seen: {name}: training is {norm.training}, drops out {dropped}, mean of statistics {mean[0].item():.2f}")
layer = keras.layers.Dropout(0.5)
layer.eval()
asked = not torch.equal(layer(inputs, training=True), inputs)
print("seen: keras: after eval(), with training=True, drops out", asked)
sys.exit(not (seen == {"torch": [True, True, True], "keras": [True, False, False]} and asked))
PY
