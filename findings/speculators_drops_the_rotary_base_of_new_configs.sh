#!/usr/bin/env bash
# speculators and transformers: a draft head of EAGLE-3 is converted to the format of speculators, which vLLM serves.
# The converter reads rope_theta, rope_scaling and torch_dtype, the names of transformers 4. A config that transformers
# 5 wrote has them as rope_parameters and dtype: the converted head has a rotary base of 10000, no scaling and float32,
# whatever it was trained with, though the converter depends on transformers 5. All tensors are the same and nothing is
# said. Drafts are then right at first and ever worse in a longer text: a lower acceptance, which looks like a weak
# head.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 datasets==5.1.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 loguru==0.7.3 psutil==7.2.2 aiohttp==3.14.5
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps speculators==0.9.0 hs-connectors==0.9.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from importlib import metadata
from pathlib import Path

import torch
from loguru import logger
from safetensors.torch import load_file, save_file
from speculators.convert.eagle.eagle3_converter import Eagle3Converter
from transformers import LlamaConfig

folder, said = Path(sys.argv[1]), []
logger.remove()
logger.add(lambda line: said.append(str(line)), level="WARNING")
VOCABULARY, DRAFTED, WIDTH, INNER = 64, 40, 32, 48
sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": 4, "num_key_value_heads": 2}
sizes |= {"head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 65536}
scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
scaling["original_max_position_embeddings"] = 8192
LlamaConfig(num_hidden_layers=2, **sizes).save_pretrained(folder / "verifier")
shapes = {
    "fc": (WIDTH, 3 * WIDTH), "lm_head": (DRAFTED, WIDTH), "midlayer.self_attn.q_proj": (WIDTH, 2 * WIDTH),
    "midlayer.self_attn.k_proj": (16, 2 * WIDTH), "midlayer.self_attn.v_proj": (16, 2 * WIDTH),
    "midlayer.self_attn.o_proj": (WIDTH, WIDTH), "midlayer.mlp.gate_proj": (INNER, WIDTH),
    "midlayer.mlp.up_proj": (INNER, WIDTH), "midlayer.mlp.down_proj": (WIDTH, INNER), "norm": (WIDTH,),
    "midlayer.input_layernorm": (WIDTH,), "midlayer.hidden_norm": (WIDTH,),
    "midlayer.post_attention_layernorm": (WIDTH,),
}  # fmt: skip
tensors = {f"{name}.weight": torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}
tensors |= {"d2t": torch.zeros(DRAFTED, dtype=torch.long), "t2d": torch.arange(VOCABULARY) < DRAFTED}


def converted(name, config):
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps({**config, "draft_vocab_size": DRAFTED}))
    save_file(tensors, folder / name / "model.safetensors")
    Eagle3Converter().convert(folder / name, folder / f"{name}_new", str(folder / "verifier"), validate=False)
    layer = json.loads((folder / f"{name}_new" / "config.json").read_text())["transformer_layer_config"]
    weights = load_file(folder / f"{name}_new" / "model.safetensors")
    return layer["rope_parameters"], str(weights["fc.weight"].dtype)


of_four = {"num_hidden_layers": 1, "rope_theta": 5e5, "rope_scaling": scaling, "torch_dtype": "bfloat16", **sizes}
of_five = LlamaConfig(num_hidden_layers=1, rope_parameters={"rope_theta": 5e5, **scaling}, dtype="bfloat16", **sizes)
four, five = converted("four", of_four), converted("five", of_five.to_dict())
print("speculators", metadata.version("speculators"), "transformers", metadata.version("transformers"))
print("guess: both configs say base 500000, scaling llama3 and bfloat16, and so does the converted head")
print("config of transformers 4:", *four)
print("config of transformers 5:", *five)
print("warnings that speak of it:", [line for line in said if "rope" in line or "dtype" in line])
kept = four[0]["rope_theta"] == 5e5 and four[0]["rope_type"] == "llama3" and four[1] == "torch.bfloat16"
lost = five[0]["rope_theta"] == 1e4 and five[0]["rope_type"] == "default" and five[1] == "torch.float32"
sys.exit(not (kept and lost and not any("rope" in line for line in said)))
PY
