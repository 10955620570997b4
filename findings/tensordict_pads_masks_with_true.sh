#!/usr/bin/env bash
# tensordict: pad_sequence joins rows of different lengths, and padding_value is the number to pad with: -100 for
# labels, or the id of a pad token. It is used for every key, the boolean ones too, where any number but 0 is True: the
# mask of a row then says that its padding is text, and is all True. With 0, the default and what a first test has, the
# mask is right. Positions, rewards and flags such as "done" are padded by the same number. Nothing is said; the mask
# that return_mask=True adds is right, under another name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensordict==0.15.3 numpy==2.4.6
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from tensordict import TensorDict, pad_sequence


def row(*ids):
    tensors = {"ids": torch.tensor(ids), "mask": torch.ones(len(ids), dtype=torch.bool)}
    return TensorDict(tensors, batch_size=[len(ids)])


rows = [row(5, 6, 7), row(8)]
print("tensordict", metadata.version("tensordict"), "torch", torch.__version__)
print("guess: the second row has one True in its mask, whatever its ids are padded with")
found = {value: pad_sequence(rows, padding_value=value, return_mask="added") for value in (0, 1, -100)}
for value, batch in found.items():
    second = [batch[key][1].tolist() for key in ("ids", "mask")]
    print(f"padding_value={value}: ids {second[0]}, mask {second[1]}, added {int(batch['added', 'ids'][1].sum())}")
counts = [int(batch["mask"][1].sum()) for batch in found.values()]
added = [int(batch["added", "ids"][1].sum()) for batch in found.values()]
sys.exit(not (counts == [1, 3, 3] and added == [1, 1, 1]))
PY
