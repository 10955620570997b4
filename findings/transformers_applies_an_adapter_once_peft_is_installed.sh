#!/usr/bin/env bash
# transformers: what from_pretrained makes of a folder with config.json, weights and the files of an adapter depends on
# whether PEFT can be imported. Without it the adapter is passed over, with it the adapter is applied, and nothing is
# said in either case: installing a package changes the logits of a model. It matters where a checkpoint was saved into
# the folder of an adapter's training, to loaders that read config.json and weights, and to two machines compared.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
cat >"$folder/check.py" <<'PY'
import contextlib
import importlib.util
import io
import json
import sys
import warnings
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

folder, has_peft = Path(sys.argv[1]) / "model", importlib.util.find_spec("peft") is not None
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
plain = LlamaForCausalLM(LlamaConfig(vocab_size=40, initializer_range=0.5, **sizes)).eval()
plain.save_pretrained(folder)
stem = "base_model.model.model.layers.0.self_attn.v_proj."
pair = {f"{stem}lora_A.weight": torch.randn(2, 32), f"{stem}lora_B.weight": torch.randn(32, 2)}
save_file(pair, folder / "adapter_model.safetensors")
adapter = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["v_proj"]}
(folder / "adapter_config.json").write_text(json.dumps(adapter | {"base_model_name_or_path": str(folder)}))

said = io.StringIO()
with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(said):
    warnings.simplefilter("always")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
ids = torch.arange(3, 15)[None]
with torch.inference_mode():
    moved = float((model(ids).logits - plain(ids).logits).abs().max())
named = [text for text in (said.getvalue(), *(str(one.message) for one in caught)) if "adapter" in text.lower()]
print("transformers", transformers.__version__, "PEFT installed:", has_peft, "logits move by", moved, "said:", named)
sys.exit((moved > 0.1) != has_peft or bool(named))
PY
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1
echo "guess: the folder is one model, whatever else is installed"
"$folder/venv/bin/python" "$folder/check.py" "$folder"
"$folder/venv/bin/pip" install -q --disable-pip-version-check peft==0.21.2
"$folder/venv/bin/python" "$folder/check.py" "$folder"
