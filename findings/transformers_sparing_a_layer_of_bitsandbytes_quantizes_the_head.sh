#!/usr/bin/env bash
# transformers and bitsandbytes: a model that is loaded in 8 or 4 bits keeps its head as it was, since the logits suffer
# most. llm_int8_skip_modules names modules to keep as well, such as a router or a layer with outliers. It replaces what
# is kept by default and does not add to it: as soon as one module is spared, the head is quantized. An attempt to save
# quality, or to compare layers by sparing one after the other, changes two things at a time, with no word of the
# second.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6 accelerate==1.15.0 bitsandbytes==0.50.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import bitsandbytes
import torch
import transformers
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

folder = Path(sys.argv[1]) / "model"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0
)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
seen = {}
print("transformers", transformers.__version__, "bitsandbytes", bitsandbytes.__version__)
print("guess: sparing down_proj leaves one module more as it was, and the head too")
for bits in (8, 4):
    for skip in (None, ["down_proj"]):
        how = BitsAndBytesConfig(**{f"load_in_{bits}bit": True}, llm_int8_skip_modules=skip)
        model = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu", quantization_config=how)
        kept = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]
        seen[bits, bool(skip)] = "lm_head" in kept
        print(f"seen: {bits} bits, llm_int8_skip_modules={skip}: kept are", kept)
sys.exit(seen != {(8, False): True, (8, True): False, (4, False): True, (4, True): False})
PY
