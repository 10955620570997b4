#!/usr/bin/env bash
# transformers: a generation config shows top_k None, and sampling keeps 50 tokens: generate fills in what is None.
# Setting top_k to None on the model or in a GenerationConfig changes nothing, while the same None as an argument of
# generate turns the filter off, and so does 0 everywhere. Who reads the config to repeat the sampling in another
# engine, or measures a model's own distribution by its samples, gets another distribution.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=200, pad_token_id=0, **size)).eval()
ids = torch.tensor([[5, 6, 7]])


def kept(**more):
    """How many of the 200 tokens can be sampled."""
    how = {"max_new_tokens": 1, "do_sample": True, "output_scores": True, "return_dict_in_generate": True}
    if "generation_config" in more:
        more["generation_config"].update(**how)
        how = {}
    return int(model.generate(ids, **how, **more).scores[0].isfinite().sum())


shown = model.generation_config.top_k
seen = {
    "as it comes": kept(),
    "GenerationConfig(top_k=None)": kept(generation_config=GenerationConfig(top_k=None, pad_token_id=0)),
    "generate(top_k=None)": kept(top_k=None),
    "GenerationConfig(top_k=0)": kept(generation_config=GenerationConfig(top_k=0, pad_token_id=0)),
}
print("transformers", transformers.__version__, "torch", torch.__version__)
print(f"guess: model.generation_config.top_k is {shown}, so all 200 tokens can be sampled, each time")
for name, tokens in seen.items():
    print(f"{name}: {tokens} tokens can be sampled")
sys.exit(not (shown is None and list(seen.values()) == [50, 50, 200, 200]))
PY
