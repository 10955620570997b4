#!/usr/bin/env bash
# PEFT: merge_adapter and unmerge_adapter add an adapter to the weights and take it off again, as a server does that
# switches between adapters. Each pair rounds twice. In float32 the weights are off by one rounding, however often it is
# done. In bfloat16 and float16 the errors do not cancel: they grow in proportion to the number of switches, in one
# direction per weight. After 100 switches the largest error is two fifths of the largest weight: the base model is
# gone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from peft import LoraConfig, get_peft_model
from torch import nn


def moved(dtype):
    """The largest change of a weight after 1, 10 and 100 switches, as a part of the largest weight."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"q_proj": nn.Linear(64, 64)}).to(dtype)
    weights = model["q_proj"].weight
    before, seen = weights.detach().clone(), {}
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    for switch in range(1, 101):
        adapted.merge_adapter()
        adapted.unmerge_adapter()
        if switch in (1, 10, 100):
            seen[switch] = ((weights - before).abs().max() / before.abs().max()).item()
    return seen


print("peft", metadata.version("peft"), "torch", torch.__version__)
print("guess: errors of rounding stay as small as one of them, or grow slowly")
seen = {dtype: moved(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)}
for dtype, moves in seen.items():
    print(f"seen: {dtype}:", ", ".join(f"{move:.1e} after {switches}" for switches, move in moves.items()))
half = seen[torch.bfloat16]
sys.exit(not (seen[torch.float32][100] < 1e-6 and half[1] < 0.02 and half[100] > 0.3 and half[100] > 50 * half[1]))
PY
