#!/usr/bin/env bash
# transformers: a stop string may begin in the prompt. generate compares the end of prompt and answer together, so that
# an answer that begins with the rest of a stop string ends there: after a prompt that ends in a line break, "\n\n"
# stops at the first line break of the answer, which does not contain the stop string. Cutting the answer at the stop
# string afterwards finds none in it, and a program that looks for stop strings in the answer alone goes on.
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

letters = [*map(chr, range(ord("a"), ord("z") + 1)), "\n", "."]
line = letters.index("\n")
words = Tokenizer(models.WordLevel(dict(zip(letters, range(28))), unk_token="a"))
words.pre_tokenizer, words.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a")
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
ends = {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
model = LlamaForCausalLM(LlamaConfig(vocab_size=28, initializer_range=0.6, **size, **ends)).eval()


def answer(prompt, **more):
    mask = torch.ones_like(prompt)
    ids = model.generate(prompt, attention_mask=mask, max_new_tokens=12, do_sample=False, **more)
    return "".join(letters[token] for token in ids[0, prompt.shape[1] :])


for _ in range(2000):  # a prompt that ends in a line break, and is answered by one line break and other text
    prompt = torch.cat([torch.randint(0, 26, (1, 7)), torch.tensor([[line]])], 1)
    whole = answer(prompt)
    if whole[0] == "\n" and "\n\n" not in whole and "\n" not in whole[1:]:
        break
stopped = answer(prompt, stop_strings=["\n\n"], tokenizer=tokenizer)
inside = answer(prompt, stop_strings=["".join(letters[token] for token in prompt[0, 2:5])], tokenizer=tokenizer)
print("transformers", transformers.__version__, "torch", torch.__version__)
print(f"without stop strings the answer is {whole!r}")
print("guess: with the stop string '\\n\\n' it is the same, since it contains none")
print(f"seen: it is {stopped!r}; a stop string that lies within the prompt ends nothing: {inside == whole}")
sys.exit(not (whole[0] == "\n" and len(whole) == 12 and stopped == "\n" and inside == whole))
PY
