#!/usr/bin/env bash
# PEFT: target_modules and modules_to_save both take names of modules. A name in target_modules is a whole part of a
# module's path: "head" is not "lm_head". A name in modules_to_save is any ending: "head" also takes "lm_head" and
# "draft_head", "proj" takes q_proj, k_proj and all others. Each is copied, trained without a low rank, and saved: an
# adapter of kilobytes has the size of the model, and weights change that were meant to be frozen. Nothing is said.
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
names = ["q_proj", "head", "lm_head", "draft_head"]


def model():
    return nn.ModuleDict({name: nn.Linear(8, 8) for name in names})


def trained(**options):
    adapted = get_peft_model(model(), LoraConfig(**options))
    found = {name.split(".")[2] for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    return [name for name in names if name in found]


print("peft", metadata.version("peft"))
print("guess: the name head means the module head, in each list")
target = trained(target_modules=["head"])
saved = trained(target_modules=["q_proj"], modules_to_save=["head"])
print("seen: target_modules=['head'] trains", target)
print("seen: target_modules=['q_proj'], modules_to_save=['head'] trains", saved)
sys.exit(target != ["head"] or saved != names)
PY
