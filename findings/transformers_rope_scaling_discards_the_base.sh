#!/usr/bin/env bash
# transformers: model cards say how to extend a context: add "rope_scaling" to config.json. In a config that transformers 5
# wrote, the rotary base (rope_theta) is part of "rope_parameters", and a "rope_scaling" beside it replaces that whole
# object: the base falls back to 10000, without a warning, and every text gets other logits, short ones too. The same edit
# of a config that transformers 4 wrote keeps its base. It matters for whoever extends a fine-tuned or re-saved model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import logging
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
transformers.utils.logging.disable_default_handler()
transformers.utils.logging.add_handler(handler)
folder = Path(sys.argv[1]) / "model"
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
base = {"rope_type": "default", "rope_theta": 1000000.0}
Qwen3Config(vocab_size=64, max_position_embeddings=32768, rope_parameters=base, **size).save_pretrained(folder)
file = folder / "config.json"
new = json.loads(file.read_text())
old = {key: value for key, value in new.items() if key != "rope_parameters"} | {"rope_theta": 1000000.0}
card = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def read(config):
    file.write_text(json.dumps(config | {"rope_scaling": card}))
    said.clear()
    config = AutoConfig.from_pretrained(folder)
    rotation = AutoModelForCausalLM.from_config(config).model.rotary_emb.inv_freq
    return config.rope_parameters["rope_theta"], rotation, list(said)


kept, right, _ = read(old)
lost, wrong, warnings = read(new)
print("transformers", transformers.__version__)
print("guess: rope_scaling adds YaRN, and the base of the config stays 1000000")
print(f"seen: base {kept:.0f} in a config of transformers 4, {lost:.0f} in one of transformers 5; logged: {warnings}")
print("seen: the rotary frequencies differ:", not torch.allclose(right, wrong, rtol=0.1))
sys.exit(not (kept == 1000000 and lost == 10000 and not warnings and not torch.allclose(right, wrong, rtol=0.1)))
PY
