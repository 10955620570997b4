#!/usr/bin/env bash
# transformers: drafts (prompt lookup, or an assistant) leave greedy tokens as they are, and so does guidance by a scale
# work in plain decoding. Together they give other tokens, silently: the guidance keeps a cache of its own, to which it
# adds each token that it is called for, and drafts that were rejected stay in it. Who turns on both, for text that
# should follow a prompt more closely and faster, gets neither method's text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=32, initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=None, **size)
model = LlamaForCausalLM(config).eval()
prompts = torch.randint(2, 32, (10, 6)).repeat(1, 3)  # each has its first tokens three times, so that lookup drafts


def same(**options):
    """In how many rows tokens are those without drafts."""
    count = 0
    for prompt in prompts:
        plain, drafted = (
            model.generate(prompt[None], do_sample=False, max_new_tokens=24, **options, **more)
            for more in ({}, {"prompt_lookup_num_tokens": 4})
        )
        count += torch.equal(plain, drafted)
    return count


alone, guided = same(), same(guidance_scale=1.5)
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: prompt lookup leaves greedy tokens as they are, with guidance and without")
print(f"seen: without guidance {alone} of {len(prompts)} rows have the same tokens, with guidance_scale=1.5 {guided}")
sys.exit(not (alone == len(prompts) and guided < len(prompts) / 2))
PY
