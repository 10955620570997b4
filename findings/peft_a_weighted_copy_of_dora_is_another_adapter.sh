#!/usr/bin/env bash
# PEFT: add_weighted_adapter makes one adapter of several, and of a single one with a weight of 1 a copy. For adapters
# with DoRA the copy computes something else: the trained lengths of the rows are left out, and the new adapter begins
# with those of the model, though its config says that it uses DoRA. All ways of combining, "linear", "cat" and "svd",
# do it. Averages of DoRA adapters, and copies under a new name to go on from, lose what was trained there, and no error
# or warning says so. For LoRA the copy is exact.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from peft import LoraConfig, get_peft_model

inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.proj = torch.nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return self.proj(x)


def off(dora, way):
    """How far the copy's outputs are from the adapter's, as a share of what the adapter changes."""
    base = Block()(inputs).detach()
    model = get_peft_model(Block(), LoraConfig(r=4, target_modules=["proj"], use_dora=dora), adapter_name="trained")
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        (model(inputs) - 2 * base).pow(2).mean().backward()
        optimizer.step()
    with torch.no_grad():
        trained = model(inputs)
        model.add_weighted_adapter(["trained"], [1.0], "copy", combination_type=way)
        model.set_adapter("copy")
        copy = model(inputs)
    assert model.peft_config["copy"].use_dora == dora
    return float((copy - trained).norm() / (trained - base).norm())


print("peft", metadata.version("peft"), "torch", torch.__version__)
print("guess: a combination of one adapter with weight 1 is that adapter")
ways = ("linear", "cat", "svd")
plain, dora = [off(False, way) for way in ways], [off(True, way) for way in ways]
for name, values in (("LoRA", plain), ("DoRA", dora)):
    print(f"{name}:", ", ".join(f"{way} differs by {value:.3f}" for way, value in zip(ways, values, strict=True)))
sys.exit(not (max(plain) < 1e-3 and min(dora) > 0.1))
PY
