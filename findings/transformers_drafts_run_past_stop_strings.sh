#!/usr/bin/env bash
# transformers: generate looks for stop strings at the end of the text, after each round. Plain decoding adds one token
# a round; with drafts (prompt lookup, an assistant) a round adds several, and a stop string within them is passed over:
# the text goes on to the next one, or to the length limit. End tokens and the limit are cut there, stop strings are
# not. Copying text from the prompt, which lookup is for, is where drafts are long and stop strings are in the middle of
# them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = [chr(ord("a") + index) for index in range(26)]
words = Tokenizer(models.WordLevel(dict(zip(letters, range(26))), unk_token="a"))
words.pre_tokenizer, words.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a")
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
ends = {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
model = LlamaForCausalLM(LlamaConfig(vocab_size=26, initializer_range=0.6, **size, **ends)).eval()
prompt = torch.randint(0, 26, (1, 8))
drafts = {"prompt_lookup_num_tokens": 5}


def text(**more):
    mask = torch.ones_like(prompt)
    ids = model.generate(prompt, attention_mask=mask, max_new_tokens=60, do_sample=False, **more)
    return "".join(letters[token] for token in ids[0, prompt.shape[1] :])


whole = text()
stops = sorted({whole[at : at + 3] for at in range(10, 57)}, key=whole.index)
plain = {stop: text(stop_strings=[stop], tokenizer=tokenizer) for stop in stops}
drafted = {stop: text(stop_strings=[stop], tokenizer=tokenizer, **drafts) for stop in stops}
past = [stop for stop in stops if drafted[stop] != plain[stop]]
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: with drafts the text ends at its stop string, as it does without them")
print("same text without stop strings:", text(**drafts) == whole)
print(f"seen: {len(past)} of {len(stops)} stop strings are passed over")
for stop in past[:2]:
    print(f"stop {stop!r}: without drafts {plain[stop]!r}, with drafts {drafted[stop]!r}")
right = all(plain[stop].endswith(stop) and plain[stop].index(stop) == len(plain[stop]) - 3 for stop in stops)
sys.exit(not (right and text(**drafts) == whole and past and all(stop in drafted[stop][:-3] for stop in past)))
PY
