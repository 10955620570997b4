#!/usr/bin/env bash
# diffusers: AmusedScheduler takes a temperature, and its pipelines pass it on. A temperature of 0 does not make a
# picture the model's best one, or the same for two seeds: it rules which tokens are masked again, and the tokens
# themselves are drawn from the model's probabilities in any case, at 1. A number by itself is not kept either: it falls
# to 0.01 over the steps, as (2, 0), the default, falls to 0. Who carries over "0 is greedy" from text, or from
# BlockRefinementScheduler of the same library, compares samples. Logits that were multiplied by a large number before
# the step are greedy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
from diffusers import AmusedScheduler, BlockRefinementScheduler

TOKENS, VOCABULARY, STEPS = 64, 50, 8
logits = torch.randn(1, TOKENS, VOCABULARY, generator=torch.Generator().manual_seed(4))
best = logits.argmax(-1)


def amused(seed, temperature, sharper=1.0):
    scheduler, generator = AmusedScheduler(mask_token_id=VOCABULARY), torch.Generator().manual_seed(seed)
    scheduler.set_timesteps(STEPS, temperature=temperature)
    sample = torch.full((1, TOKENS), VOCABULARY)
    for timestep in scheduler.timesteps:
        sample = scheduler.step(logits * sharper, timestep, sample, generator=generator).prev_sample
    return sample


def refined(seed):
    scheduler, generator = BlockRefinementScheduler(block_length=TOKENS), torch.Generator().manual_seed(seed)
    scheduler.set_timesteps(STEPS, block_length=TOKENS)
    sample, masked = torch.full((1, TOKENS), VOCABULARY), torch.cat([logits, torch.full((1, TOKENS, 1), -1e4)], -1)
    for step in range(STEPS):
        options = {"mask_token_id": VOCABULARY, "temperature": 0.0, "generator": generator}
        sample = scheduler.step(masked, step, sample, **options).prev_sample
    return sample


scheduler = AmusedScheduler(mask_token_id=VOCABULARY)
scheduler.set_timesteps(STEPS, temperature=2)
ends = scheduler.temperatures[[0, -1]].tolist()
cases = {
    "temperature (0, 0)": [amused(seed, (0, 0)) for seed in (0, 1)],
    "temperature 0": [amused(seed, 0) for seed in (0, 1)],
    "BlockRefinementScheduler, temperature 0": [refined(seed) for seed in (0, 1)],
    "temperature (0, 0), logits times 1000": [amused(seed, (0, 0), 1000.0) for seed in (0, 1)],
}
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print("guess: at a temperature of 0 every token is the model's best one, and two seeds give the same")
seen = {}
for name, (one, two) in cases.items():
    seen[name] = int((one != two).sum()), int((one == best).sum())
    print(f"{name}: two seeds differ in {seen[name][0]} of {TOKENS} tokens, {seen[name][1]} are the best")
print("temperature 2 goes from {:.2f} to {:.2f}".format(*ends))
sampled = all(differ > 20 and equal < 40 for differ, equal in list(seen.values())[:2])
greedy = all(one == (0, TOKENS) for one in list(seen.values())[2:])
sys.exit(not (sampled and greedy and ends[0] == 2 and ends[1] < 0.02))
PY
