#!/usr/bin/env bash
# transformers: min_new_tokens keeps the end token from being generated too early. Stop strings are not held back: a
# text that has to have ten tokens ends at its second, where a stop string is met, with no word. Benchmarks of a fixed
# length, and answers that must not be empty, end at the first line break if that is a stop string.
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

torch.manual_seed(0)
words = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
letters = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
letters.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>", eos_token="<eos>")
size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=len(words), initializer_range=0.3, pad_token_id=0, eos_token_id=1, **size)
model = LlamaForCausalLM(config).eval()
prompt = tokenizer("hello", return_tensors="pt")


def generated(**options):
    ids = prompt.input_ids
    options |= {"attention_mask": prompt.attention_mask, "max_new_tokens": 12, "do_sample": False}
    return model.generate(ids, **options)[0, ids.shape[1] :].tolist()


plain = generated()
stop = next(letter for letter in map(tokenizer.decode, plain[1:]) if letter.isascii())
at = [tokenizer.decode(token) for token in plain].index(stop) + 1
model.generation_config.eos_token_id = plain[at - 1]
seen = {"end token": [len(generated()), len(generated(min_new_tokens=10))]}
model.generation_config.eos_token_id = 1
options = {"stop_strings": [stop], "tokenizer": tokenizer}
seen["stop string"] = [len(generated(**options)), len(generated(**options, min_new_tokens=10))]
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: with min_new_tokens=10 a text has at least ten tokens, whatever would end it")
for what, (without, held) in seen.items():
    print(f"seen: {what} at token {at}: {without} tokens, and {held} with min_new_tokens=10")
sys.exit(not (seen["end token"][0] == at < 10 <= seen["end token"][1] and seen["stop string"] == [at, at]))
PY
