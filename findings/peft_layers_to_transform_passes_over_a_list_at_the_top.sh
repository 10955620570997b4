#!/usr/bin/env bash
# PEFT: layers_to_transform=[0, 1] asks for an adapter of the first two layers. The layer of a module is the first
# number in its name that has two names before it: in "model.layers.1.mlp" it is 1. Where the list stands at the top, as
# in the transformers of diffusers, it is passed over: "transformer_blocks.3.ff.net.0.proj" counts as layer 0 and
# "transformer_blocks.0.attn.to_q" as none. The adapter is then put on a half of every block, and not on the attention
# of any, without a word. The same block below one more name, or layers_pattern, gives what was asked for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
import warnings
from importlib import metadata

from peft import LoraConfig, get_peft_model
from torch import nn

warnings.simplefilter("error")


def block():
    net = nn.ModuleList([nn.ModuleDict({"proj": nn.Linear(8, 8)}), nn.Linear(8, 8)])
    return nn.ModuleDict({"attn": nn.ModuleDict({"to_q": nn.Linear(8, 8)}), "ff": nn.ModuleDict({"net": net})})


def adapted(below, **options):
    model = nn.ModuleDict({"transformer_blocks": nn.ModuleList(block() for _ in range(4))})
    config = LoraConfig(target_modules=["to_q", "proj"], layers_to_transform=[0, 1], **options)
    modules = get_peft_model(nn.ModuleDict({"model": model}) if below else model, config).targeted_module_names
    return [module.removeprefix("model.").removeprefix("transformer_blocks.") for module in modules]


print("peft", metadata.version("peft"))
print("guess: layers_to_transform=[0, 1] adapts attention and ff of the blocks 0 and 1 of 4")
asked = ["0.attn.to_q", "0.ff.net.0.proj", "1.attn.to_q", "1.ff.net.0.proj"]
seen = {
    "transformer_blocks": adapted(False),
    "model.transformer_blocks": adapted(True),
    "transformer_blocks, layers_pattern": adapted(False, layers_pattern="transformer_blocks"),
}
for case, modules in seen.items():
    print(f"seen: {case}:", ", ".join(modules))
sys.exit(list(seen.values()) != [[f"{layer}.ff.net.0.proj" for layer in range(4)], asked, asked])
PY
