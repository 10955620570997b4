#!/usr/bin/env bash
# tensordict: a TensorDict holds the tensors of a batch or a model, and has half(), bfloat16() and to(dtype) as a module
# has. A module's convert floating-point tensors and leave the rest; a TensorDict's convert all of them: ids, positions,
# masks and counters too. An id above 2,048 in float16, or above 256 in bfloat16, is then another token: 50257 is 50272,
# and converting back does not bring it back. Nothing is said, small ids, as tests have, come through, and a mask that
# was boolean is added to scores from then on. BatchNorm's count of batches goes the same way. Converting the floating
# keys one by one is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensordict==0.15.3 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from tensordict import TensorDict, from_module


class Batch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ids", torch.tensor([[7, 2049, 50257]]))
        self.register_buffer("mask", torch.tensor([[True, True, False]]))
        self.register_buffer("weights", torch.tensor([[0.25, 0.5, 1.0]]))


def read(tensors):
    return {name: tensor.long().tolist() for name, tensor in tensors.items() if name == "ids"}, {
        name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()
    }


batch = TensorDict(dict(Batch().named_buffers()), batch_size=[1])
found = {
    "a module, half()": dict(Batch().half().named_buffers()),
    "a TensorDict, half()": dict(batch.half().items()),
    "a TensorDict, bfloat16()": dict(batch.bfloat16().items()),
    "a TensorDict, to(torch.float16)": dict(batch.to(torch.float16).items()),
}
print("tensordict", metadata.version("tensordict"), "torch", torch.__version__)
print("guess: ids and masks keep their types and values, as in a module")
for name, tensors in found.items():
    print(f"{name}:", *read(tensors))
norm = from_module(torch.nn.BatchNorm1d(2)).data
print("count of a BatchNorm, half():", norm.half()["num_batches_tracked"].dtype)
kept, *changed = found.values()
right = torch.equal(kept["ids"], batch["ids"]) and kept["mask"].dtype == torch.bool
right = right and kept["weights"].dtype == torch.float16
wrong = all(tensors["ids"].is_floating_point() and tensors["mask"].is_floating_point() for tensors in changed)
moved = all(tensors["ids"].long().tolist()[0][2] != 50257 for tensors in changed)
sys.exit(not (right and wrong and moved and norm.half()["num_batches_tracked"].is_floating_point()))
PY
