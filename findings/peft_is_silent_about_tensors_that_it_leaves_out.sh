#!/usr/bin/env bash
# PEFT: an adapter's file and its config can disagree, and what is said depends on the direction. A tensor that the
# config asks for and the file lacks is warned about. A tensor that the file holds and the config does not target
# (target_modules, layers_to_transform) is left out without a word, though it was trained: the logits are those of half
# the adapter. It matters where a config was edited or shared between adapters, and to loaders that read the file alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
import warnings
from pathlib import Path

import peft
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
base = LlamaForCausalLM(LlamaConfig(vocab_size=40, initializer_range=0.5, **sizes))
base.save_pretrained(folder / "base")
trained = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
for name, parameter in trained.named_parameters():
    if "lora_" in name:
        torch.nn.init.normal_(parameter, std=0.3)
trained.save_pretrained(folder / "adapter")
file, config = folder / "adapter" / "adapter_model.safetensors", folder / "adapter" / "adapter_config.json"
tensors, settings = load_file(file), json.loads(config.read_text())


def loaded(tensors, **changed):
    """The logits, and the warnings that name keys or modules of the adapter."""
    save_file(tensors, file)
    config.write_text(json.dumps({**settings, **changed}))
    plain = LlamaForCausalLM.from_pretrained(folder / "base")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(plain, folder / "adapter").eval()
    said = [str(one.message) for one in caught if "adapter" in str(one.message) or "_proj" in str(one.message)]
    with torch.inference_mode():
        return model(torch.arange(3, 15)[None]).logits, said


whole, said = loaded(tensors)
fewer, said_of_fewer = loaded(tensors, target_modules=["q_proj"])
first, said_of_first = loaded(tensors, layers_to_transform=[0])
lacking, said_of_lacking = loaded({name: value for name, value in tensors.items() if ".layers.1." not in name})
print("peft", peft.__version__, "torch", torch.__version__)
print("guess: tensors of the file that are left out are named, as tensors that it lacks are")
print("not targeted: logits move by", float((fewer - whole).abs().max()), "warnings:", said_of_fewer)
print("layer not listed: logits move by", float((first - whole).abs().max()), "warnings:", said_of_first)
print("layer lacking: logits move by", float((lacking - whole).abs().max()), "warnings:", len(said_of_lacking))
silent = not said and not said_of_fewer and not said_of_first
differs = not torch.allclose(fewer, whole, atol=0.1) and torch.allclose(first, lacking, atol=1e-5)
sys.exit(not (silent and differs and len(said_of_lacking) == 1))
PY
