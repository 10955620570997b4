#!/usr/bin/env bash
# PEFT: the weight of an adapter says how much of it is added: at 0 the model is the one without it, at a half its
# change is halved. An adapter with DoRA also has a length for each row of a weight, which was trained too, and which no
# weight scales: at 0 the rows point where the model's do and have the adapter's lengths. A slider, an average of
# several adapters or a comparison at weight 0 shows a third model, neither the base nor the adapter; two adapters, each
# at its weight, multiply their lengths. set_scale, and set_adapters of diffusers, do not say so. Disabling the adapter
# does give the model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import peft
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer

ids = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.proj = torch.nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return self.proj(x)


def distances(dora):
    """How far outputs are from the base, with the adapter at 1, a half and 0, and disabled, as a share of 1."""
    base = Block()(ids).detach()
    model = get_peft_model(Block(), LoraConfig(r=4, target_modules=["proj"], use_dora=dora))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        (model(ids) - 2 * base).pow(2).mean().backward()
        optimizer.step()
    found = {}
    with torch.no_grad():
        for scale in (1.0, 0.5, 0.0):
            for layer in model.modules():
                if isinstance(layer, LoraLayer):
                    layer.set_scale("default", scale)
            found[scale] = float((model(ids) - base).norm())
        with model.disable_adapter():
            disabled = float((model(ids) - base).norm())
    return [round(value / found[1.0], 3) for value in (*found.values(), disabled)]


print("peft", metadata.version("peft"), "torch", torch.__version__)
print("guess: at weights of 1, 0.5 and 0 an adapter changes outputs by 1, 0.5 and 0 times its change")
plain, dora = distances(False), distances(True)
print("LoRA at 1, 0.5, 0 and disabled:", plain)
print("DoRA at 1, 0.5, 0 and disabled:", dora)
sys.exit(not (plain == [1.0, 0.5, 0.0, 0.0] and dora[2] > 0.2 and dora[3] == 0.0))
PY
