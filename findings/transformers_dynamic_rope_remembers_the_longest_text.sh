#!/usr/bin/env bash
# transformers: a forward without a cache is a function of its ids. With the rotary scaling dynamic it is one of the
# texts before it as well: frequencies follow the longest text that the model has been given, and shrink again only
# after one within the original length. A text beyond that length has other logits after a longer text than in a new
# model, so that an evaluation depends on the order of its texts, and a repeated request on who else asked. Scoring the
# same text twice in a row does not show it; sorting texts by length, longest first, gives all others the wrong base.
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

torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}

rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
config = LlamaConfig(vocab_size=32, initializer_range=0.4, max_position_embeddings=16, rope_parameters=rope, **size)
model = LlamaForCausalLM(config).eval()
text, longer, short = (torch.randint(3, 32, (1, length)) for length in (20, 60, 8))


def apart(between):
    """The largest difference of the text's logits before and after other texts."""
    model(short)
    first = model(text).logits
    for other in between:
        model(other)
    return float((model(text).logits - first).abs().max())


with torch.inference_mode():
    between = {"the same text": [text], "a longer one": [longer], "a longer and a short": [longer, short]}
    seen = {name: apart(texts) for name, texts in between.items()}
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: the logits of a text do not depend on the texts before it")
for name, difference in seen.items():
    print(f"seen: after {name}: largest difference {difference:.1e}")
sys.exit([difference > 0.1 for difference in seen.values()] != [False, True, False])
PY
