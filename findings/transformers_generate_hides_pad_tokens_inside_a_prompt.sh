#!/usr/bin/env bash
# transformers: a prompt without an attention_mask is attended to as a whole, except that generate looks for the pad
# token in it. Every place that holds one is masked, in the middle of a text too: where the pad token is one that texts
# have, such as the unknown token (a usual choice for Llama 2) or a line break, the model does not see it, and the
# positions after it move. The model's own forward of the same ids, with which likelihoods are computed, sees it; so
# does generate once a mask of ones is given, or once the pad token is the end token. No warning is given.
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
prompts = torch.randint(2, 32, (10, 12))


def same(ids):
    """In how many rows the first token of generate is the best one of the model's forward."""
    options = {"do_sample": False, "max_new_tokens": 1}
    bare = [model.generate(row[None], **options)[0, -1] for row in ids]
    masked = [model.generate(row[None], attention_mask=torch.ones_like(row[None]), **options)[0, -1] for row in ids]
    with torch.inference_mode():
        best = model(ids).logits[:, -1].argmax(-1)
    return sum(map(torch.equal, bare, best)), sum(map(torch.equal, masked, best))


without = same(prompts)
prompts[:, 5] = 0
within = same(prompts)
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: one prompt without padding is seen as a whole, so that generate takes the best token of a forward")
print(f"seen: of {len(prompts)} prompts without the pad token {without[0]}; with one in the middle {within[0]}, and")
print(f"{within[1]} if generate is given a mask of ones")
sys.exit(not (without == (10, 10) and within[1] == 10 and within[0] < 10))
PY
