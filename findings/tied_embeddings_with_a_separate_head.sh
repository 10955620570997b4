#!/usr/bin/env bash
# transformers: a checkpoint whose config says tie_word_embeddings may still be run with a head of its own.
# A loader that trusts the config, drops lm_head.weight and shares the embedding computes other logits than the
# reference, with no error on either side. It matters for merged, pruned and retrained checkpoints, whose head was
# changed while the config was copied.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

folder = Path(sys.argv[1]) / "model"
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    tie_word_embeddings=True,
)
AutoModelForCausalLM.from_config(config).save_pretrained(folder)
head = torch.randn(32, 16)
tensors = load_file(folder / "model.safetensors")
save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
model = AutoModelForCausalLM.from_pretrained(folder)
own = torch.equal(model.lm_head.weight, head)
print("transformers", transformers.__version__)
print("guess: tie_word_embeddings is true, so the head is the embedding and lm_head.weight of the file is ignored")
print(f"seen: config.tie_word_embeddings is {model.config.tie_word_embeddings}, the head is the file's own: {own}")
sys.exit(not (own and model.config.tie_word_embeddings))
PY
