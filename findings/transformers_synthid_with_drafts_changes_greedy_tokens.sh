#!/usr/bin/env bash
# transformers: both watermarks of generate are settings of one argument, watermarking_config, and work in greedy
# decoding. Drafts (prompt lookup, or an assistant) leave the tokens of WatermarkingConfig as they are. SynthID keeps
# the tokens before the current one in a state that each call moves on, and a round of drafts calls it for several
# places, also for tokens that are then rejected: the state is that of another text, no error says so, and no row has
# the tokens that it has without drafts.
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

from transformers import SynthIDTextWatermarkingConfig, WatermarkingConfig

config = LlamaConfig(vocab_size=32, initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=None, **size)
model = LlamaForCausalLM(config).eval()
prompts = torch.randint(3, 32, (5, 6)).repeat(1, 3)  # each has its first tokens three times, so that lookup drafts
kinds = {
    "no watermark": lambda: None,
    "WatermarkingConfig": lambda: WatermarkingConfig(bias=2.0, seeding_scheme="lefthash"),
    "SynthID": lambda: SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123], ngram_len=3, context_history_size=64),
}


def same(watermark, **options):
    """In how many rows tokens are those of plain decoding."""
    count = 0
    for prompt in prompts:
        plain, other = (
            model.generate(prompt[None], do_sample=False, max_new_tokens=12, watermarking_config=watermark(), **more)
            for more in ({}, options)
        )
        count += torch.equal(plain, other)
    return count


print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: greedy tokens are the same with prompt lookup, for either watermark")
seen = {kind: (same(watermark), same(watermark, prompt_lookup_num_tokens=4)) for kind, watermark in kinds.items()}
for kind, (again, drafted) in seen.items():
    print(f"seen: {kind}: repeated {again} of {len(prompts)} rows have the same tokens, with prompt lookup {drafted}")
sys.exit(not (all(again == 5 for again, _ in seen.values()) and [count > 2 for _, count in seen.values()] == [1, 1, 0]))
PY
