#!/usr/bin/env bash
# torchao: a model whose head is tied to its embedding, as most small ones are, is quantized to save memory. quantize_
# replaces the head's weight, which ends the tie: the embedding stays in full, and the quantized head is a second tensor
# beside it. The model takes more memory than before, where tokens are most of it, and the head and the embedding are no
# longer the same numbers. No error or warning says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchao==0.18.0 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY' 2> >(grep -v "Failed to load" >&2)
import sys
from importlib import metadata

import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_


class Tied(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.embedding = nn.Embedding(8192, 256)
        self.layer = nn.Linear(256, 256)
        self.head = nn.Linear(256, 8192, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


def size(model):
    tensors = {id(tensor): tensor for tensor in model.parameters()}
    parts = [
        tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else [] for tensor in tensors.values()
    ]
    held = [[getattr(tensor, name) for name in names] or [tensor] for tensor, names in zip(tensors.values(), parts)]
    return sum(part.nbytes for each in held for part in each) / 2**20


print("torchao", metadata.version("torchao"), "torch", torch.__version__)
print("guess: a model quantized to 8 bits takes less memory than in bfloat16")
seen = {}
for tied in (False, True):
    model = Tied(tied).to(torch.bfloat16)
    before = size(model)
    quantize_(model, Int8WeightOnlyConfig())
    seen[tied] = before, size(model), model.head.weight is model.embedding.weight
    print(f"seen: {'tied' if tied else 'not tied'}: {before:.1f} MiB, quantized {seen[tied][1]:.1f} MiB")
    print(f"seen: embedding {type(model.embedding.weight).__name__}, head {type(model.head.weight).__name__}")
sys.exit(not (seen[False][1] < seen[False][0] and seen[True][1] > seen[True][0] and not seen[True][2]))
PY
