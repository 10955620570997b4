#!/usr/bin/env bash
# transformers: top_k=1 is often written for greedy decoding, in APIs that have no other switch. The filter keeps every
# token whose score is not below the k-th, so all that tie with the best stay, and sampling chooses among them. In
# bfloat16 logits have three digits and ties are frequent: two seeds give two texts, where greedy decoding gives one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, TopKLogitsWarper

torch.manual_seed(0)
size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=8192, initializer_range=0.1, pad_token_id=0, eos_token_id=None, **size)
single = LlamaForCausalLM(config).eval()
prompts = torch.randint(2, 8192, (64, 16))


def kept(model):
    """In how many of the prompts' positions top_k=1 keeps more than one token."""
    with torch.inference_mode():
        logits = model(prompts).logits.float().flatten(0, 1)
    left = TopKLogitsWarper(1)(prompts, logits).isfinite().sum(-1)
    return int((left > 1).sum())


def texts(model, seed):
    transformers.set_seed(seed)
    more = {"attention_mask": torch.ones_like(prompts), "max_new_tokens": 16}
    return model.generate(prompts, do_sample=True, top_k=1, **more)


ties = {"float32": kept(single)}
half = single.to(torch.bfloat16)
ties["bfloat16"] = kept(half)
one, other = texts(half, 0), texts(half, 1)
differ = int((one != other).any(-1).sum())
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: top_k=1 leaves one token, so the seed does not matter")
print(f"seen: positions of {prompts.numel()} at which it leaves more than one: {ties}")
print(f"seen: in bfloat16 {differ} of {len(prompts)} texts of 16 tokens differ between two seeds")
sys.exit(not (ties["bfloat16"] > 0 and differ > 0 and ties["float32"] < ties["bfloat16"]))
PY
