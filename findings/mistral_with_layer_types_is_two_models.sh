#!/usr/bin/env bash
# transformers: a Mistral config that has layer_types is two models. The auto classes load it as Ministral, which
# follows layer_types; MistralForCausalLM, the class that the config's own "architectures" names, ignores the key and
# slides its window over every layer. Logits differ, both ways load all weights, and one line in the log is all that is
# said. An engine that trusts model_type and architectures computes what no AutoModel user gets.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

folder = Path(sys.argv[1]) / "model"
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
config = MistralConfig(vocab_size=64, num_key_value_heads=2, sliding_window=4, initializer_range=0.5, **size)
MistralForCausalLM(config).save_pretrained(folder)
file = folder / "config.json"
saved = json.loads(file.read_text())
ids = torch.arange(3, 15)[None]


def logits(cls, **keys):
    file.write_text(json.dumps({**saved, **keys}))
    model = cls.from_pretrained(folder).eval()
    with torch.inference_mode():
        return type(model).__name__, model(ids).logits


full = {"layer_types": ["full_attention"] * 2}
_, windows = logits(MistralForCausalLM)
_, none = logits(MistralForCausalLM, sliding_window=None)
auto, by_auto = logits(AutoModelForCausalLM, **full)
own, by_class = logits(MistralForCausalLM, **full)
seen = {
    f"AutoModelForCausalLM ({auto}) follows layer_types": torch.allclose(by_auto, none, atol=1e-5),
    f"{own} slides its window over all layers": torch.equal(by_class, windows),
    "logits of the two are the same": torch.allclose(by_auto, by_class, atol=1e-3),
}
print("transformers", transformers.__version__, "architectures", saved["architectures"], "layers", full["layer_types"])
print("guess: the auto class loads the class that architectures names, so both give the same logits")
print("seen:", seen)
sys.exit(list(seen.values()) != [True, True, False] or auto != "MinistralForCausalLM")
PY
