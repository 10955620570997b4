#!/usr/bin/env bash
# transformers: save_pretrained writes one file or, beyond max_shard_size, parts with an index. Saving into a folder
# that was used before clears old parts away, and leaves an old model.safetensors where the new weights are in parts.
# Loading prefers the single file: from_pretrained gives the model of before, of the same shapes and without a word, as
# when a merge, a longer training or another type of numbers made the weights larger than a part. accelerate's
# save_model leaves it too. huggingface_hub's save_torch_model clears both, and its load_torch_model takes the parts:
# one folder is two models by the function that loads it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6 accelerate==1.15.0 huggingface_hub==2.4.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
from pathlib import Path

import accelerate
import huggingface_hub
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

config = LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0
)


def made(seed):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


old, new = made(0), made(1)
savers = {
    "transformers": lambda folder: new.save_pretrained(folder, max_shard_size="50KB"),
    "accelerate": lambda folder: accelerate.Accelerator().save_model(new, folder, max_shard_size="50KB"),
    "huggingface_hub": lambda folder: huggingface_hub.save_torch_model(new, folder, max_shard_size="50KB"),
}


def by_hub(folder):
    model = made(2)
    huggingface_hub.load_torch_model(model, folder)
    return model


def age(model):
    for name, one in (("old", old), ("new", new)):
        if torch.equal(model.lm_head.weight, one.lm_head.weight):
            return name
    return "neither"


print("transformers", transformers.__version__, "accelerate", accelerate.__version__, end=" ")
print("huggingface_hub", huggingface_hub.__version__)
print("guess: the model that was saved last is loaded")
seen = {}
for name, save in savers.items():
    folder = Path(sys.argv[1]) / name
    old.save_pretrained(folder)
    save(folder)
    parts = len(list(folder.glob("model-*.safetensors")))
    seen[name] = age(AutoModelForCausalLM.from_pretrained(folder)), age(by_hub(folder))
    print(f"seen: saved by {name} in {parts} parts: from_pretrained gives the {seen[name][0]} model,", end=" ")
    print(f"load_torch_model the {seen[name][1]} one")
sys.exit(seen != {"transformers": ("old", "new"), "accelerate": ("old", "new"), "huggingface_hub": ("new", "new")})
PY
