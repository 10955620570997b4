#!/usr/bin/env bash
# transformers: stop strings need a tokenizer, which generate takes as an argument and uses in plain decoding and with
# prompt lookup. With an assistant model the same call fails, and says that no tokenizer was passed. The two ways of
# speculation, which one would take for one feature with two sources of drafts, are not interchangeable.
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

letters = "\u0120abcdefghijklmnopqrstuvwxyz"  # byte-level BPE writes a space so
plain = Tokenizer(models.BPE(vocab={letter: 2 + at for at, letter in enumerate(letters)} | {"<p>": 0, "<end>": 1}, merges=[]))
plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<p>", eos_token="<end>")
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=29, initializer_range=0.5, eos_token_id=1, pad_token_id=0, **sizes)
model, assistant = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
prompt = tokenizer("a cat and a dog", return_tensors="pt").input_ids


def decoded(**arguments):
    try:
        out = model.generate(prompt, do_sample=False, max_new_tokens=20, tokenizer=tokenizer, **arguments)
    except ValueError as error:
        return f"ValueError: {str(error)[:200]}"
    return tokenizer.decode(out[0, prompt.shape[1] :])


stop = decoded()[9:11]
ways = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": 3}, "assistant": {"assistant_model": assistant}}
free = {name: decoded(**way) for name, way in ways.items()}
stopped = {name: decoded(stop_strings=[stop], **way) for name, way in ways.items()}
print("transformers", transformers.__version__, "torch", torch.__version__)
print("guess: with an assistant, stop strings end the text where plain decoding and prompt lookup end it")
for name, text in stopped.items():
    print(f"{name}: {text}")
same = len(set(free.values())) == 1 and stopped["plain"] == stopped["lookup"] and stopped["plain"].endswith(stop)
sys.exit(not (same and stopped["assistant"].startswith("ValueError") and "tokenizer" in stopped["assistant"]))
PY
