#!/usr/bin/env bash
# PEFT: alpha_pattern and rank_pattern give some modules another scale or rank; of several patterns that match a module,
# the first one counts. save_pretrained sorts the keys of adapter_config.json, those of the patterns too. A special
# pattern before a general one, the order that works in training, may thus be second in the file: the loaded adapter
# scales some layers otherwise than the trained one, with all tensors as they were and without a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import peft
import torch
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
base = LlamaForCausalLM(LlamaConfig(vocab_size=40, initializer_range=0.3, **sizes))
base.save_pretrained(folder / "base")
ids = torch.arange(3, 15)[None]


def saved_and_loaded(name, patterns):
    """How far logits move by saving and loading an adapter, and the scale of q_proj in layer 1 before and after."""
    torch.manual_seed(1)
    plain = LlamaForCausalLM.from_pretrained(folder / "base")
    config = peft.LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj", "v_proj"], alpha_pattern=patterns)
    trained = peft.get_peft_model(plain, config).eval()
    for key, parameter in trained.named_parameters():
        if "lora_" in key:
            torch.nn.init.normal_(parameter, std=0.3)
    trained.save_pretrained(folder / name)
    again = peft.PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(folder / "base"), folder / name).eval()
    module = "base_model.model.model.layers.1.self_attn.q_proj"
    scales = [model.get_submodule(module).scaling["default"] for model in (trained, again)]
    with torch.inference_mode():
        moved = (trained(ids).logits - again(ids).logits).abs().max()
    return float(moved), scales, list(json.loads((folder / name / "adapter_config.json").read_text())["alpha_pattern"])


one = {"layers.1.self_attn.q_proj": 32}
several = {"layers.1.self_attn.q_proj": 32, "[qv]_proj": 8}
cases = {"one pattern": one, "special before general": several, "general first": dict(reversed(several.items()))}
print("peft", peft.__version__, "torch", torch.__version__)
print("guess: a saved adapter gives the logits of the trained one")
seen = {name: saved_and_loaded(name.replace(" ", "-"), patterns) for name, patterns in cases.items()}
for name, (moved, scales, order) in seen.items():
    print(f"{name}: logits move by {moved:.2f}, scale of q_proj in layer 1: {scales[0]} to {scales[1]}, file: {order}")
moved = [value for value, _, _ in seen.values()]
special = seen["special before general"]
sys.exit(not (moved[0] < 1e-5 and moved[2] < 1e-5 and moved[1] > 0.1 and special[1] == [8.0, 2.0]))
PY
