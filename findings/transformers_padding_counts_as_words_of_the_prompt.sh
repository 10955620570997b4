#!/usr/bin/env bash
# transformers: prompts of different lengths are padded on the left, with the end token where a model has no pad token.
# The padding is no text: positions, the attention, and repetition_penalty leave it out. encoder_repetition_penalty,
# encoder_no_repeat_ngram_size and no_repeat_ngram_size=1 do not: for a padded row the end token is a word of its
# prompt, which the first makes likelier and the others forbid. A row then ends early, or never does, by the length of
# the longest prompt of its batch, and one without padding is as it is alone. Nothing is said. min_length, which counts
# the prompt, counts the padding too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.4.6
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
from transformers import LlamaConfig, LlamaForCausalLM

END, PADDING, LIMIT = 2, 6, 16
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, eos_token_id=END,
    pad_token_id=END, initializer_range=0.5,
)  # fmt: skip
model = LlamaForCausalLM(config).eval()
prompts = torch.randint(3, 40, (24, 5), generator=torch.Generator().manual_seed(0))
padded = torch.cat([torch.full((len(prompts), PADDING), END), prompts], 1)
mask = torch.cat([torch.zeros(len(prompts), PADDING), torch.ones(len(prompts), 5)], 1).long()


def answers(ids, mask, **options):
    rows = [
        model.generate(ids[i : i + 1], attention_mask=mask[i : i + 1], max_new_tokens=LIMIT, do_sample=False, **options)
        for i in range(len(ids))
    ]
    return [row[0, ids.shape[1] :].tolist() for row in rows]


print("transformers", metadata.version("transformers"), "torch", torch.__version__)
print("guess: a padded prompt has the answer that it has without padding")
found = {}
for options in (
    {},
    {"repetition_penalty": 1.3},
    {"encoder_repetition_penalty": 1.2},
    {"encoder_no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 1},
):
    alone = answers(prompts, torch.ones_like(prompts), **options)
    batched = answers(padded, mask, **options)
    different = sum(one != other for one, other in zip(alone, batched, strict=True))
    lengths = [sum(map(len, rows)) / len(rows) for rows in (alone, batched)]
    name = next(iter(options), "no option")
    found[name] = different, *lengths
    print(f"{name}: {different} of {len(prompts)} differ; mean length {lengths[0]:.1f}, padded {lengths[1]:.1f}")
same = [found["no option"][0], found["repetition_penalty"][0]]
early = found["encoder_repetition_penalty"]
forbidden = [found["encoder_no_repeat_ngram_size"], found["no_repeat_ngram_size"]]
never = all(count > 5 and alone < LIMIT and padded == LIMIT for count, alone, padded in forbidden)
sys.exit(not (same == [0, 0] and early[0] > 3 and early[2] < early[1] and never))
PY
