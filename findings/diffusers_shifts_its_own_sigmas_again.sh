#!/usr/bin/env bash
# diffusers: FlowMatchEulerDiscreteScheduler shifts the shares of noise (sigmas) of its steps towards noise, with shift=3
# as of Stable Diffusion 3. set_timesteps takes sigmas, and shifts them too: the sigmas of one run, given to the next to
# repeat it, give another schedule, with more noise at each step. Nor does the scheduler repeat itself: as many steps as
# in training give other sigmas than the new scheduler has, since their range is shifted twice, and the last step of any
# run starts at three times the smallest sigma of training. With shift=1 all agree, and nothing is logged.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
from diffusers import FlowMatchEulerDiscreteScheduler


def rounded(sigmas):
    return [round(float(sigma), 3) for sigma in sigmas]


print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: a run's own sigmas give the same run, and as many steps as in training the sigmas of training")
seen = {}
for shift in (1.0, 3.0):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    training = rounded(scheduler.sigmas[-3:])
    scheduler.set_timesteps(1000)
    all_steps = rounded(scheduler.sigmas[-4:-1])
    scheduler.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25])
    first = rounded(scheduler.sigmas[:-1])
    scheduler.set_timesteps(sigmas=scheduler.sigmas[:-1].tolist())
    again = rounded(scheduler.sigmas[:-1])
    seen[shift] = training, all_steps, first, again
    print(f"shift={shift}: a run has the sigmas {first}, given to set_timesteps {again}")
    print(f"shift={shift}: the last three of training {training}, of set_timesteps(1000) {all_steps}")
plain, shifted, twice = [1.0, 0.75, 0.5, 0.25], [1.0, 0.9, 0.75, 0.5], [1.0, 0.964, 0.9, 0.75]
ends = [0.003, 0.002, 0.001], [0.009, 0.006, 0.003], [0.015, 0.012, 0.009]
expected = {1.0: (ends[0], ends[0], plain, plain), 3.0: (ends[1], ends[2], shifted, twice)}
sys.exit(seen != expected)
PY
