#!/usr/bin/env bash
# diffusers: BlockRefinementScheduler commits the tokens of a masked text model whose probability is above a threshold.
# That is the probability after temperature, top_k and top_p: with top_k=1, or a small top_p, one token is left, its
# probability is 1, and a whole block is committed at the first step, though the model is nowhere sure. A filter that is
# meant to make sampling more careful turns the threshold off, and decoding into one guess per position.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 diffusers==0.42.1
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys

import diffusers
import torch
from diffusers import BlockRefinementScheduler

BLOCK, VOCABULARY, MASK = 32, 60, 59
torch.manual_seed(0)
logits = torch.randn(1, BLOCK, VOCABULARY)
logits[..., MASK] = -30
best = logits.softmax(-1).amax(-1)


def steps(**options):
    """How many steps a block takes, at one token per step unless more of them pass the threshold."""
    scheduler = BlockRefinementScheduler(block_length=BLOCK, threshold=0.9)
    scheduler.set_timesteps(BLOCK, block_length=BLOCK)
    block, count, generator = torch.full((1, BLOCK), MASK), 0, torch.Generator().manual_seed(0)
    while (block == MASK).any():
        block = scheduler.step(logits, count, block, mask_token_id=MASK, generator=generator, **options).prev_sample
        count += 1
    return count


cases = {
    "greedy": {}, "temperature 1": {"temperature": 1.0}, "temperature 1, top_k 1": {"temperature": 1.0, "top_k": 1},
    "temperature 1, top_p 0.02": {"temperature": 1.0, "top_p": 0.02}, "temperature 0.02": {"temperature": 0.02},
}  # fmt: skip
seen = {name: steps(**options) for name, options in cases.items()}
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print(f"threshold 0.9; the model's largest probability is {best.max():.2f}, its mean over positions {best.mean():.2f}")
print("guess: top_k=1 decodes as greedy decoding does, and no case commits more than one token per step")
for name, count in seen.items():
    print(f"{name}: {count} steps for {BLOCK} tokens")
plain = seen["greedy"] == seen["temperature 1"] == BLOCK
filtered = seen["temperature 1, top_k 1"] == seen["temperature 1, top_p 0.02"] == 1
sys.exit(not (best.max() < 0.9 and plain and filtered and seen["temperature 0.02"] < BLOCK // 2))
PY
