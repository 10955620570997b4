#!/usr/bin/env bash
# transformers: of the keys that a Llama config does not define, some change the logits and some do nothing.
# sliding_window and partial_rotary_factor, which sibling families obey, are ignored; is_causal, which no Llama config
# documents, turns the causal mask off. A converter that copies such keys from another family changes less, or more,
# than it says.
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
config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
content = json.loads((folder / "config.json").read_text())
ids = torch.arange(1, 25)[None]


def logits(**keys):
    (folder / "config.json").write_text(json.dumps({**content, **keys}))
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits


plain = logits()
keys = {"sliding_window": 4, "partial_rotary_factor": 0.5, "is_causal": False}
changes = {key: not torch.equal(logits(**{key: value}), plain) for key, value in keys.items()}
print("transformers", transformers.__version__)
print("guess: keys that the family does not define are either all passed on or all ignored")
print("seen: " + ", ".join(f"{key} {'changes the logits' if change else 'does nothing'}" for key, change in changes.items()))
sys.exit(changes != {"sliding_window": False, "partial_rotary_factor": False, "is_causal": True})
PY
