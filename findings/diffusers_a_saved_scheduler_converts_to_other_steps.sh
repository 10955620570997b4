#!/usr/bin/env bash
# diffusers: from_config makes another scheduler from a pipeline's own, and from_pretrained does so from its folder.
# What the first scheduler was not told is left to the second's defaults: DDIMScheduler() becomes an Euler scheduler
# that spaces its steps by "linspace", and DDIMScheduler(timestep_spacing="leading"), which is the same scheduler, one
# that has them at "leading". The folder does not tell the two apart: after saving and loading, the first becomes
# "leading" too. A training script that draws samples with a solver, and the user who loads its pipeline and takes the
# same solver, visit other timesteps, with nothing logged. DPM++ and UniPC change in the same way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.24.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from importlib import metadata

import diffusers
import torch
from diffusers import DDIMScheduler

folder = sys.argv[1]


def steps(name, config):
    solver = getattr(diffusers, name).from_config(config)
    solver.set_timesteps(4)
    return [round(step) for step in solver.timesteps.tolist()]


plain, told = DDIMScheduler(), DDIMScheduler(timestep_spacing="leading")
plain.save_pretrained(folder)
loaded = DDIMScheduler.from_pretrained(folder)
same = []
for scheduler in (plain, told, loaded):
    scheduler.set_timesteps(4)
    same.append(scheduler.timesteps.tolist())
print("diffusers", metadata.version("diffusers"), "torch", torch.__version__)
print("guess: a scheduler, one that is told its own default, and the first one loaded again convert to the same steps")
print("DDIM:", *same)
different = []
for name in ("EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"):
    found = [steps(name, scheduler.config) for scheduler in (plain, told, loaded)]
    print(f"{name}: {found[0]}; told {found[1]}; saved and loaded {found[2]}")
    different.append(found[0] != found[1] and found[1] == found[2])
sys.exit(not (same[0] == same[1] == same[2] and all(different)))
PY
