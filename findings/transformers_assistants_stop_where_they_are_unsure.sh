#!/usr/bin/env bash
# transformers: num_assistant_tokens says how many tokens an assistant drafts a round, and with a schedule of "constant"
# one expects that many. An assistant that is less than 40% sure of a token stops there: assistant_confidence_threshold
# is 0.4 unless one sets it, and shows as None in the assistant's config. A curve of speed over the length of drafts is
# then one of other lengths, and drafts of 5 and of 20 measure the same. With 0 as the threshold drafts have the length
# that was asked for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
import warnings

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore")
size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=50, pad_token_id=0, eos_token_id=None, initializer_range=0.1, **size)
prompt = torch.tensor([[5, 6, 7]])
torch.manual_seed(0)
model, assistant = (LlamaForCausalLM(config).eval() for _ in range(2))
fed = []
model.register_forward_hook(lambda module, inputs, output: fed.append(output.logits.shape[1]))


def drafts(number, **options):
    """The lengths of the drafts, as long as there is room for them."""
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = number, "constant"
    settings.assistant_confidence_threshold = None
    for name, value in options.items():
        setattr(settings, name, value)
    fed.clear()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=60, assistant_model=assistant)
    return [length - 1 for length in fed[:10]]


print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: drafts of 5 and of 20 tokens have 5 and 20 tokens")
seen = {number: drafts(number) for number in (5, 20)}
asked = {number: drafts(number, assistant_confidence_threshold=0.0) for number in seen}
for number in seen:
    print(f"seen: of {number} asked for: {seen[number]}; with a threshold of 0: {asked[number]}")
sys.exit(not (seen[5] == seen[20] == [1] * 10 and all(set(lengths) == {number} for number, lengths in asked.items())))
PY
