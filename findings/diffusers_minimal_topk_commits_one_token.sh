#!/usr/bin/env bash
# diffusers: BlockRefinementScheduler decodes masked text models such as LLaDA2, block by block. Its minimal_topk is
# described as the minimum of tokens to commit per step, and changes nothing: step reads it and never uses it. How many
# tokens a step commits at least is the length of the block over num_inference_steps alone. The pipeline does use it, to
# shorten the steps by the length of the whole answer: 4 does nothing there for an answer of four or more blocks.
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

BLOCK, STEPS, VOCABULARY, MASK = 32, 32, 60, 59
torch.manual_seed(0)
logits = torch.randn(1, BLOCK, VOCABULARY)
logits[..., MASK] = -30


def committed(steps=STEPS, **options):
    """How many tokens each step commits, until no mask is left."""
    scheduler = BlockRefinementScheduler(block_length=BLOCK, **options.pop("config", {}))
    scheduler.set_timesteps(steps, block_length=BLOCK)
    block, counts = torch.full((1, BLOCK), MASK), []
    while (block == MASK).any():
        out = scheduler.step(logits, len(counts), block, mask_token_id=MASK, threshold=0.99, **options)
        block = out.prev_sample
        counts.append(int(out.transfer_index.sum()))
    return counts


cases = {
    "minimal_topk=1": committed(), "minimal_topk=4, of step": committed(minimal_topk=4),
    "minimal_topk=4, of the config": committed(config={"minimal_topk": 4}), "8 steps": committed(steps=8),
}  # fmt: skip
print("diffusers", diffusers.__version__, "torch", torch.__version__)
print(f"guess: with minimal_topk=4 a step commits at least 4 tokens, so a block of {BLOCK} takes 8 steps at most")
for name, counts in cases.items():
    print(f"{name}: {len(counts)} steps, {min(counts)} to {max(counts)} tokens each")
length = 4 * BLOCK
print(f"the pipeline's steps for an answer of {length} tokens:", min(STEPS, length // 4), "of", STEPS)
one, four = [1] * BLOCK, [4] * 8
sys.exit([*cases.values()] != [one, one, one, four])
PY
