#!/usr/bin/env bash
# diffusers: add_noise of a scheduler takes a timestep for each image of a batch, as in training. Once set_begin_index
# was called, which pipelines do at each run, the timesteps are not looked at: every image gets the noise of the step at
# which the run is, and after it none at all. A training loop that makes pictures for validation with its own scheduler
# trains on clean images afterwards, and no error says so. set_timesteps ends it. Schedulers without a begin index, such
# as DDIM, follow the timesteps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler


def shares(scheduler, timesteps):
    """How much noise two images get."""
    images, noise = torch.zeros(2, 1, 1, 1), torch.ones(2, 1, 1, 1)
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        return scheduler.scale_noise(images, timesteps, noise).flatten().tolist()
    return scheduler.add_noise(images, noise, timesteps).flatten().tolist()


print("diffusers", diffusers.__version__)
print("guess: two images of two timesteps get two amounts of noise, whatever ran before")
seen = {}
for kind in (DDIMScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler):
    scheduler = kind()
    scheduler.set_timesteps(10)
    timesteps = scheduler.timesteps[[2, 8]]
    before = shares(scheduler, timesteps)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)  # as a pipeline does
    image = torch.zeros(1, 1, 1, 1)
    for timestep in scheduler.timesteps:
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(image, timestep)
        image = scheduler.step(torch.zeros_like(image), timestep, image).prev_sample
    after = shares(scheduler, timesteps)
    print(f"seen: {kind.__name__}: {before[0]:.2f} and {before[1]:.2f}, then {after[0]:.2f} and {after[1]:.2f}")
    seen[kind] = before, after
sys.exit(
    any(before[0] == before[1] for before, _ in seen.values())
    or seen[DDIMScheduler][1] != seen[DDIMScheduler][0]
    or any(seen[kind][1] != [0.0, 0.0] for kind in (EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler))
)
PY
