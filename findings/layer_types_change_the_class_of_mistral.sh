#!/usr/bin/env bash
# transformers: one key in config.json of a Mistral loads another class than the one that its architectures name.
# With layer_types, AutoModelForCausalLM makes a Ministral, which alternates full and sliding attention by layer; code
# that reads model_type and architectures alone runs a plain Mistral, with other logits after the window.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import transformers
from transformers import AutoModelForCausalLM, MistralConfig

folder = Path(sys.argv[1]) / "model"
config = MistralConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    sliding_window=4,
)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
content = json.loads((folder / "config.json").read_text())
before = type(AutoModelForCausalLM.from_pretrained(folder)).__name__
content["layer_types"] = ["full_attention", "sliding_attention"]
(folder / "config.json").write_text(json.dumps(content))
after = type(AutoModelForCausalLM.from_pretrained(folder)).__name__
print("transformers", transformers.__version__)
print(f"guess: model_type {content['model_type']} and architectures {content['architectures']} decide the class")
print(f"seen: {before} without layer_types, {after} with them")
sys.exit((before, after) != ("MistralForCausalLM", "MinistralForCausalLM"))
PY
