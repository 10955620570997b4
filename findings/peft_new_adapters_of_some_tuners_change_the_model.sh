#!/usr/bin/env bash
# PEFT: an adapter that was added and not trained changes nothing: one of its factors is zero, and training starts from
# the model itself. It holds for LoRA and most other tuners, and a check of the loss before the first step relies on it.
# FourierFT, VB-LoRA and C3A begin with random weights: their models differ from the base at once, which for FourierFT
# is what init_weights=False stands for, in LoRA a setting for tests. Runs start from a worse model, and adapters that
# were added for later use, or left untrained by a frozen layer, are noise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import copy
import sys
from importlib import metadata

import peft
import torch
from torch import nn

torch.manual_seed(0)
base, x = nn.ModuleDict({"q_proj": nn.Linear(64, 64)}), torch.randn(8, 64)
to = {"target_modules": ["q_proj"]}
tuners = {
    "LoRA": peft.LoraConfig(r=4, **to),
    "DoRA": peft.LoraConfig(r=4, use_dora=True, **to),
    "IA3": peft.IA3Config(feedforward_modules=[], **to),
    "LoHa": peft.LoHaConfig(r=4, **to),
    "LoKr": peft.LoKrConfig(r=4, **to),
    "OFT": peft.OFTConfig(r=0, oft_block_size=4, **to),
    "BOFT": peft.BOFTConfig(boft_block_size=4, **to),
    "VeRA": peft.VeraConfig(r=4, **to),
    "HRA": peft.HRAConfig(r=4, **to),
    "FourierFT": peft.FourierFTConfig(n_frequency=1000, **to),
    "VB-LoRA": peft.VBLoRAConfig(r=4, vector_length=16, num_vectors=32, **to),
    "C3A": peft.C3AConfig(block_size=16, **to),
}


def change(config):
    """How far outputs of the adapted model are from the base, as a part of the base's."""
    model = peft.get_peft_model(copy.deepcopy(base), config).eval()
    before, after = base["q_proj"](x), model.base_model.model["q_proj"](x)
    return ((after - before).norm() / before.norm()).item()


print("peft", metadata.version("peft"), "torch", torch.__version__)
print("guess: 0 for all")
seen = {name: change(config) for name, config in tuners.items()}
for name, part in seen.items():
    print(f"seen: {name}: {part:.2g}")
moved = [name for name, part in seen.items() if part > 1e-4]
sys.exit(moved != ["FourierFT", "VB-LoRA", "C3A"])
PY
