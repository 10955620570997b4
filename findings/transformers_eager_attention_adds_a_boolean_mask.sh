#!/usr/bin/env bash
# transformers: a mask of four dimensions is taken as it is, and says for each position what it may attend to: True or
# False in PyTorch's attention, and in that of transformers' default, sdpa. With attn_implementation="eager" the same
# mask is added to the scores: 1 for True, 0 for False, so that everything is attended to, and no error says so. eager
# is what one switches to for attention weights, and the masks of trees of drafts or packed texts are of this form.
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

size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
boolean = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
added = torch.zeros(1, 1, 6, 6).masked_fill(~boolean, -torch.inf)


def largest_difference(kind, mask):
    """Between the logits with this causal mask and those without one, which are causal."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, initializer_range=0.4, **size)
    model = LlamaForCausalLM._from_config(config, attn_implementation=kind).eval()
    with torch.inference_mode():
        return float((model(ids, attention_mask=mask).logits - model(ids).logits).abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: a boolean causal mask gives the logits of a causal model")
seen = {
    (kind, name): largest_difference(kind, mask)
    for kind in ("sdpa", "eager")
    for name, mask in (("boolean", boolean), ("0 and -inf", added))
}
for (kind, name), difference in seen.items():
    print(f"{kind}, {name}: logits differ by at most {difference:.2g}")
wrong = seen.pop(("eager", "boolean"))
sys.exit(not (wrong > 0.1 and max(seen.values()) < 1e-4))
PY
