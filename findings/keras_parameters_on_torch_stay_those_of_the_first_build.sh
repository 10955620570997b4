#!/usr/bin/env bash
# Keras: with the backend torch a Keras model is a torch.nn.Module, and keeps the list of its parameters from when it
# was built. enable_lora afterwards, as for fine-tuning a loaded model, adds weights that Keras lists and trains, and
# that parameters() and state_dict() lack: an optimizer of torch trains the biases alone, and a file of the state dict
# has no adapter. quantize("int8") replaces the kernels, and in a Sequential or functional model the old ones stay among
# the parameters: it takes more memory than before, where a subclassed model takes a quarter. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 keras==3.15.1
OMP_NUM_THREADS=1 KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PY'
import sys

import keras
import torch
from keras import layers


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(64)

    def call(self, inputs):
        return self.dense(inputs)


inputs = torch.randn(4, 64)


def built(kind):
    keras.utils.set_random_seed(0)
    model = Subclassed() if kind == "subclassed" else keras.Sequential([keras.Input((64,)), layers.Dense(64)])
    model(inputs)
    return model


def with_adapter(kind):
    model = built(kind)
    model.layers[0].enable_lora(4)
    factor = model.layers[0].lora_kernel_b.value
    before = factor.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    model(inputs).sum().backward()
    optimizer.step()
    own = any(weight.value is factor for weight in model.trainable_weights)
    return own, not torch.equal(factor.detach(), before), sum("lora" in name for name in model.state_dict())


def size(model):
    return sum(tensor.nbytes for tensor in {tensor.data_ptr(): tensor for tensor in model.parameters()}.values())


seen = {}
print("keras", keras.__version__, "torch", torch.__version__)
print("guess: parameters() has the adapter that was added, and no longer the kernel that was quantized")
for kind in ("subclassed", "sequential"):
    model = built(kind)
    before = size(model)
    model.quantize("int8")
    seen[kind] = [*with_adapter(kind), size(model) > before]
    listed, moved, saved, _ = seen[kind]
    print(f"seen: {kind}: Keras lists the adapter: {listed}, a step moves it: {moved}, tensors in state_dict: {saved}")
    print(f"seen: {kind}: bytes of the parameters, {before} before and {size(model)} after quantize")
sys.exit(seen != {"subclassed": [True, False, 0, False], "sequential": [True, False, 0, True]})
PY
