#!/usr/bin/env bash
# PEFT: add_weighted_adapter with combination_type="linear" does not add what the adapters do. It adds their factors,
# each times the root of its weight, and the product of the sums has mixed terms, of one adapter's A and the other's B:
# half of two adapters that each change a layer by 0 and W is neither. Of an adapter with itself it is the adapter, and
# with one adapter of weight 1 as well, so that such checks pass. "cat" gives the sum, at the cost of the ranks added
# together.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import peft
import torch
from peft import LoraConfig, get_peft_model

torch.manual_seed(0)
torch.set_grad_enabled(False)
adapter = LoraConfig(r=4, lora_alpha=4, target_modules=["0"], init_lora_weights=False)
model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(32, 32)), adapter, adapter_name="one")
model.add_adapter("two", adapter)
layer = model.base_model.model[0]
half = 0.5 * layer.get_delta_weight("one") + 0.5 * layer.get_delta_weight("two")


def error(names, weights, kind, expected):
    """The relative difference between the combined adapter's change of the layer and the expected one."""
    name = f"{kind}{len(model.peft_config)}"
    model.add_weighted_adapter(names, weights, name, combination_type=kind)
    return float((layer.get_delta_weight(name) - expected).norm() / expected.norm())


seen = {
    "linear, half of each": error(["one", "two"], [0.5, 0.5], "linear", half),
    "cat, half of each": error(["one", "two"], [0.5, 0.5], "cat", half),
    "linear, one of weight 1": error(["one"], [1.0], "linear", layer.get_delta_weight("one")),
}
mixed = layer.get_delta_weight("linear2") - half
a, b = ((layer.lora_A[name].weight, layer.lora_B[name].weight) for name in ("one", "two"))
terms = 0.5 * (b[1] @ a[0] + a[1] @ b[0])
print("peft", peft.__version__, "torch", torch.__version__)
print("guess: half of each adapter changes the layer by half of each change")
for name, difference in seen.items():
    print(f"{name}: differs from that by {difference:.0%}")
explained = torch.allclose(mixed, terms, atol=1e-5)
print("the difference is half of B of one times A of the other, both ways:", explained)
linear, cat, single = seen.values()
sys.exit(not (linear > 0.3 and cat < 1e-5 and single < 1e-5 and explained))
PY
