#!/usr/bin/env bash
# transformers: texts that are packed into one row are told apart by position_ids that begin again at 0. That holds only
# without a KV cache: use_cache is True unless one says otherwise, in training as well, and then the second text attends
# to the first, with no word. An attention_mask of ones, which every tokenizer returns, does the same. Losses look right
# and are those of other texts; gradient checkpointing, which turns the cache off, changes them.
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
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.4, **size)).train()
first, second = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 10, 11]])
packed = {
    "input_ids": torch.cat((first, second), 1),
    "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2]]),
    "labels": torch.cat((first, second), 1),
}
ones = torch.ones_like(packed["input_ids"])
with torch.no_grad():
    alone = model(second).logits
    seen = {
        name: float((model(**packed, **more).logits[:, 4:] - alone).abs().max())
        for name, more in {
            "as it comes": {},
            "use_cache=False": {"use_cache": False},
            "use_cache=False, a mask of ones": {"use_cache": False, "attention_mask": ones},
        }.items()
    }
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: the second text has the logits that it has alone")
for name, difference in seen.items():
    print(f"{name}: they differ by at most {difference:.2g}")
default, without, masked = seen.values()
sys.exit(not (without < 1e-4 and default > 0.1 and masked > 0.1))
PY
