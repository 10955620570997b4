#!/usr/bin/env bash
# diffusers: step of a scheduler takes the timestep that the model's output belongs to. Euler's and the solvers look it
# up at the first call of a run, and count from there: at later calls the timestep is not looked at. A step that is
# repeated, skipped, as a cache of features may do, or made for another picture with the same scheduler, is computed
# with the noise of the place to which the count has come: the same call twice gives two results, and nothing is said.
# DDIM follows the timestep, and so code that was tested with it fails with another scheduler. set_timesteps starts
# anew.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from diffusers import (
    DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler,
)  # fmt: skip

torch.manual_seed(0)
output, sample = torch.randn(2, 1, 1, 4, 4)
kinds = {
    "DDIM": lambda: DDIMScheduler(clip_sample=False),
    "Euler": EulerDiscreteScheduler,
    "DPMSolverMultistep of order 1": lambda: DPMSolverMultistepScheduler(solver_order=1),
    "FlowMatchEuler": lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
}


def results(make, places):
    """What each call of step gives, for the same output and sample at these places of a run of five steps."""
    scheduler = make()
    scheduler.set_timesteps(5)
    found = []
    for timestep in scheduler.timesteps[places]:
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(sample, timestep)
        found.append(scheduler.step(output, timestep, sample).prev_sample)
    return found


print("diffusers", metadata.version("diffusers"), "torch", torch.__version__)
print("guess: step gives the same for the same output, timestep and sample; these schedulers of order 1 have no memory")
seen = {}
for kind, make in kinds.items():
    alone = {place: results(make, [place])[0] for place in range(5)}
    repeated, skipped = results(make, [1, 1])[1], results(make, [0, 3])[1]
    at = [
        next(place for place in range(5) if torch.allclose(found, alone[place], atol=1e-6))
        for found in (repeated, skipped)
    ]
    seen[kind] = at
    print(f"seen: {kind}: step 1 repeated is step {at[0]}; step 3 after step 0 is step {at[1]}")
sys.exit(list(seen.values()) != [[1, 3], [2, 1], [2, 1], [2, 1]])
PY
