#!/usr/bin/env bash
# diffusers: from_config makes another scheduler of a pipeline's own, which is the way to use a faster solver. The
# solvers for flow models, DPMSolverMultistep and UniPCMultistep with use_flow_sigmas, call flow_shift what Stable
# Diffusion 3 and Flux call shift: the shift of 3 is left out, and 1 is used. Steps then lie as for small images, with
# little at high noise, and images get worse where a better solver was expected. One line of the log names the key, as
# it does for keys that do not matter; with flow_shift=3 the steps are spaced as one would think.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

flow = FlowMatchEulerDiscreteScheduler(shift=3.0)
flow.set_timesteps(5)
options = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}


def sigmas(kind, **more):
    scheduler = kind.from_config(flow.config, **options, **more)
    scheduler.set_timesteps(5)
    return scheduler.sigmas.tolist()


def shown(values):
    return ", ".join(f"{value:.2f}" for value in values)


seen = {kind: sigmas(kind) for kind in (DPMSolverMultistepScheduler, UniPCMultistepScheduler)}
named = {kind: sigmas(kind, flow_shift=3.0) for kind in seen}
print("diffusers", diffusers.__version__)
print("guess: noise of the steps is about that of the scheduler whose config it is:", shown(flow.sigmas.tolist()))
for kind in seen:
    print(f"seen: {kind.__name__}: {shown(seen[kind])}; with flow_shift=3: {shown(named[kind])}")
even = [abs(value - (5 - step) / 5) < 0.002 for values in seen.values() for step, value in enumerate(values)]
sys.exit(not (all(even) and all(values[3] > 0.6 for values in named.values())))
PY
