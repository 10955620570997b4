#!/usr/bin/env bash
# accelerate and transformers: a folder may hold the weights twice, as model.safetensors and as pytorch_model.bin; many
# repositories do, and after retraining or merging only one of the two is new. transformers reads the first, accelerate's
# load_checkpoint_in_model and load_checkpoint_and_dispatch, which are made for such folders, the second. Neither says so:
# one folder is two models, by the function that loads it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import sys
import warnings
from pathlib import Path

import accelerate
import torch
import transformers
from accelerate import load_checkpoint_and_dispatch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1]) / "model"
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=64, **size)
LlamaForCausalLM(config).save_pretrained(folder)
tensors = load_file(folder / "model.safetensors")
torch.save({name: torch.full_like(tensor, 0.5) for name, tensor in tensors.items()}, folder / "pytorch_model.bin")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    one = LlamaForCausalLM.from_pretrained(folder)
    other = load_checkpoint_and_dispatch(LlamaForCausalLM(config), str(folder), device_map={"": "cpu"})
said = [str(each.message) for each in caught if "safetensors" in str(each.message) or ".bin" in str(each.message)]


def file_of(model):
    weight = model.model.norm.weight.detach()
    return "pytorch_model.bin" if torch.all(weight == 0.5) else "model.safetensors"


read = {"transformers": file_of(one), "accelerate": file_of(other)}
print("accelerate", accelerate.__version__, "transformers", transformers.__version__)
print("guess: both read model.safetensors, which transformers prefers and accelerate writes by default")
print("seen:", read, "warnings:", said)
sys.exit(read != {"transformers": "model.safetensors", "accelerate": "pytorch_model.bin"} or bool(said))
PY
