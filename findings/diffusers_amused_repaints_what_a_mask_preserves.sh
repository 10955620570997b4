#!/usr/bin/env bash
# diffusers: AmusedScheduler draws the masked tokens of a picture, and leaves those that are given as they are, which is
# how a part of a picture is repainted. It ranks given tokens by the largest number of the type in place of their
# probability, and adds noise to its logarithm. In float32 and bfloat16 that keeps them; in float16, the type of the
# examples of its pipelines, the number is 65504, and the noise of a temperature of 2, the default, is as large: now and
# then a given token is masked and drawn anew, and at a temperature of 4 a fifth of them. A row of a batch that has no
# masked token loses one in any type, since at least one is masked.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
from diffusers import AmusedScheduler

TOKENS, VOCABULARY, RUNS = 256, 50, 8
generator = torch.Generator().manual_seed(3)
picture = torch.randint(VOCABULARY, (1, TOKENS), generator=generator)
logits = torch.randn(1, TOKENS, VOCABULARY, generator=generator) * 3


def changed(dtype, temperature, given=TOKENS // 2):
    """How many of the given tokens a run changes, on average, where the others are masked."""
    scheduler, count = AmusedScheduler(mask_token_id=VOCABULARY), 0
    scheduler.set_timesteps(12, temperature=temperature)
    for seed in range(RUNS):
        noise, sample = torch.Generator().manual_seed(seed), picture.clone()
        sample[:, given:] = VOCABULARY
        for timestep in scheduler.timesteps:
            sample = scheduler.step(logits.to(dtype), timestep, sample, generator=noise).prev_sample
        count += int((sample != picture)[:, :given].sum())
    return count / RUNS


print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: no given token changes, in any type")
types = torch.float32, torch.bfloat16, torch.float16
seen = {dtype: (changed(dtype, (2, 0)), changed(dtype, (4, 0)), changed(dtype, (2, 0), TOKENS)) for dtype in types}
for dtype, (default, hot, whole) in seen.items():
    print(f"{dtype}, half given: {default} of 128 change, at a temperature of 4: {hot}; all given: {whole} of 256")
half, others = seen[torch.float16], [seen[torch.float32], seen[torch.bfloat16]]
kept = all(default == hot == 0 < whole <= 1 for default, hot, whole in others)
sys.exit(not (kept and half[0] > 0 and half[1] > 12 and half[2] > 0))
PY
