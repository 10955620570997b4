#!/usr/bin/env bash
# transformers: which keys of a Llama's config.json change its logits is not what their names suggest. A sliding window
# and a partial rotary factor are stored and then ignored, while is_causal: false, which no Llama documents, turns the
# causal mask off. An engine that follows the first two, or passes over the third, computes other logits than the
# reference, with no error on either side. It matters for configs that were copied from another family.
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
size = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=32, initializer_range=0.5, **size)).save_pretrained(folder)
file = folder / "config.json"
plain = json.loads(file.read_text())
ids = torch.arange(3, 15)[None]


def logits(**keys):
    file.write_text(json.dumps({**plain, **keys}))
    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits


own = logits()
cases = {
    "sliding_window": {"sliding_window": 3, "layer_types": ["sliding_attention", "sliding_attention"]},
    "partial_rotary_factor": {"partial_rotary_factor": 0.5},
    "is_causal": {"is_causal": False},
}
changed = {name: not torch.allclose(logits(**keys), own, atol=1e-6) for name, keys in cases.items()}
print("transformers", transformers.__version__)
print("guess: sliding_window and partial_rotary_factor change a Llama's logits, and is_causal is no key of it")
print("seen: logits change with", changed)
sys.exit(changed != {"sliding_window": False, "partial_rotary_factor": False, "is_causal": True})
PY
