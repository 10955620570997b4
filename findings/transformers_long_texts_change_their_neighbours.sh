#!/usr/bin/env bash
# transformers: the rows of a batch do not depend on each other. With the rotary scaling longrope (Phi-3 and 4,
# MiniCPM) they do: the frequencies of short texts are used if the longest row, or the padding, is within the original
# length, and else those of long texts for all. A short prompt thus has other logits, and other greedy tokens, because
# a long one came into its batch; which is also what a server's batching does. The scaling dynamic does the same.
# Neither is rounding: the difference is that between two models. linear, yarn and llama3 do not look at the length.
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

short, long = torch.randint(3, 32, (1, 10)), torch.randint(3, 32, (1, 40))
batch = torch.cat([torch.nn.functional.pad(short, (0, 30)), long])
mask = torch.ones_like(batch)
mask[0, 10:] = 0
longrope = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 16, "factor": 4.0}
kinds = {"default": {}, "linear": {"factor": 4.0}, "dynamic": {"factor": 4.0}, "longrope": longrope}


def apart(kind):
    """The largest difference of a short text's logits, alone and beside a long text."""
    torch.manual_seed(0)
    length = 64 if kind == "longrope" else 16
    rope = {"rope_type": kind, "rope_theta": 1e4, **kinds[kind]}
    config = LlamaConfig(
        vocab_size=32, initializer_range=0.4, max_position_embeddings=length, rope_parameters=rope, **size
    )
    model = LlamaForCausalLM(config).eval()
    with torch.inference_mode():
        alone, beside = model(short).logits, model(batch, attention_mask=mask).logits[:1, :10]
    return float((alone - beside).abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: a text of 10 tokens has the same logits alone and in a batch with one of 40, up to rounding")
seen = {kind: apart(kind) for kind in kinds}
for kind, difference in seen.items():
    print(f"seen: {kind}: largest difference {difference:.1e}")
sys.exit([difference > 0.1 for difference in seen.values()] != [False, False, True, True])
PY
