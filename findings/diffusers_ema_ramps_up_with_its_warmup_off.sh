#!/usr/bin/env bash
# diffusers: EMAModel averages the weights of a training run by a decay, and use_ema_warmup, False by default, decides
# whether the decay begins lower. It begins lower in any case: the first step copies the weights, and step n has at most
# (1 + n) / (10 + n), so that a decay of 0.9999 is in use after 90,000 steps. A fine-tuning of 2,000 steps averages the
# last few hundred steps, whatever decay was asked for: 0.996 and 0.9999 save the same model, to the last bit. Turning
# the warmup on only makes it another one. min_decay, set to the same number, turns it off, but for the first step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
from diffusers.training_utils import EMAModel

STEPS = 2000


def averaged(**options):
    """The average, after weights that began at 0 were 1 at each step, and the weight of the last 100 steps in it."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    average = EMAModel([weight], **options)
    for step in range(STEPS):
        weight.data.fill_(float(step >= STEPS - 100))
        average.step([weight])
    last = average.shadow_params[0].item()
    first = EMAModel([weight.data * 0], **options)
    first.step([torch.nn.Parameter(weight.data * 0 + 1)])
    return first.shadow_params[0].item(), last


print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: with use_ema_warmup=False a decay of 0.9999 takes 0.0001 of the first step; of the last 100 of", STEPS)
print(f"       steps it holds {1 - 0.9999**100:.4f}")
options = [
    {"decay": 0.9999, "use_ema_warmup": False}, {"decay": 0.996, "use_ema_warmup": False},
    {"decay": 0.9999, "min_decay": 0.9999}, {"decay": 0.9999, "use_ema_warmup": True},
]  # fmt: skip
seen = [averaged(**some) for some in options]
for some, (first, last) in zip(options, seen):
    print(f"{some}: {first:.4f} of the first step, {last:.4f} of the last 100")
ramped, shorter, least, _ = seen
expected = ramped[0] == shorter[0] == least[0] == 1 and ramped == shorter and ramped[1] > 0.3
sys.exit(not (expected and abs(least[1] - (1 - 0.9999**100)) < 1e-6))
PY
