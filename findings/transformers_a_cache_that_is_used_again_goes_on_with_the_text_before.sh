#!/usr/bin/env bash
# transformers: a StaticCache is made once, of a fixed size, so that its memory and compiled code are used for each call
# of generate. Nothing empties it, though the call is given a whole prompt: the keys of the prompt and answer before stay,
# and the new text goes on after them. A second prompt of the same length, or the first one once more, is answered with
# another text than alone. No error or warning says so, with a DynamicCache neither: that a cache holds more tokens than
# the prompt has is not looked at. reset() of a StaticCache before each call gives the right text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes, **ids)).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(8)
first, second = torch.randint(1, 40, (2, 1, 12))


def text(prompt, cache=None):
    return model.generate(prompt, do_sample=False, max_new_tokens=8, past_key_values=cache)[0, 12:].tolist()


seen = {}
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: a second prompt has its own text, or the used cache is refused")
for kind in (StaticCache, DynamicCache):
    cache = kind(config=model.config, **({"max_cache_len": 64} if kind is StaticCache else {}))
    seen[kind.__name__] = [text(first, cache) == text(first), text(second, cache) == text(second)]
    if kind is StaticCache:
        cache.reset()
        seen["StaticCache after reset"] = [text(second, cache) == text(second)]
for name, right in seen.items():
    print(f"{name}: right texts {right}")
sys.exit([*seen.values()] != [[True, False], [True], [True, False]])
PY
