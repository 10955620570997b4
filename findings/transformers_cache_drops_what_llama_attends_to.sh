#!/usr/bin/env bash
# transformers: generate gives other greedy tokens with its KV cache than without one, for a Llama whose config.json has a
# sliding_window (configs that were converted from Mistral do). The layers ignore the key and attend to all earlier
# tokens; the cache is built from the same config, follows the key, and drops what lies before the window. Perplexity,
# which needs no cache, is that of the whole context, and text is decoded from a part of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

folder = Path(sys.argv[1]) / "model"
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=64, initializer_range=0.5, pad_token_id=0, eos_token_id=None, **size)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
file = folder / "config.json"
plain = json.loads(file.read_text())
prompt = torch.randint(3, 64, (1, 12))


def decoded(**keys):
    """Greedy tokens with a KV cache and without, and logits of one forward."""
    file.write_text(json.dumps({**plain, **keys}))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    more = {"do_sample": False, "max_new_tokens": 16, "attention_mask": torch.ones_like(prompt)}
    with torch.inference_mode():
        logits = model(prompt).logits
    return [model.generate(prompt, use_cache=use, **more)[0, 12:].tolist() for use in (True, False)], logits


(cached, uncached), logits = decoded()
(window_cached, window_uncached), window_logits = decoded(sliding_window=4)
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: a KV cache changes the time and not the tokens, whether a Llama follows sliding_window or not")
print("seen: without the key, the same tokens:", cached == uncached)
print("seen: with sliding_window 4, logits of one forward are those without it:", torch.equal(logits, window_logits))
print("seen: with it, tokens without a cache are those without the key:", window_uncached == uncached)
print("seen: with it, tokens with a cache are the same:", window_cached == uncached)
same = cached == uncached == window_uncached and torch.equal(logits, window_logits)
sys.exit(not (same and window_cached != uncached))
PY
