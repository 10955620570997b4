#!/usr/bin/env bash
# outlines: Generator(model, list[int]) makes a model answer with a list of integers, and dict[str, int] with a
# dictionary. The dictionary may be empty and the list may not: "[]" is forbidden, with every backend, though it is a
# value of the type, of the same list within a Pydantic model, and of JSON schema's array. An extraction that finds
# nothing then invents an item, since after the bracket only an item is allowed, and the answer looks like a finding.
# No error or warning says so. JsonSchema of the same list, or a union with a word for "none", allows it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6 outlines==1.3.3
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import outlines

transformers.logging.set_verbosity_error()
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
tokenizer.add_special_tokens(["</s>"])
tokens = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
ids = {"bos_token_id": None, "eos_token_id": 256, "pad_token_id": 256}
model = LlamaForCausalLM(LlamaConfig(vocab_size=257, **sizes, **ids)).eval()
wanted = ""


def want(_, inputs, logits):
    """The model wants to write `wanted`, and then to end."""
    logits[:, -1, 256] += 50
    seen = counted[0] = counted[0] + 1
    if seen <= len(wanted):
        logits[:, -1, tokenizer.token_to_id(wanted[seen - 1])] += 100


model.lm_head.register_forward_hook(want)
reader = outlines.from_transformers(model, tokens)
kinds = {
    "list[int]": (list[int], "[]"),
    "tuple[int, ...]": (tuple[int, ...], "()"),
    "dict[str, int]": (dict[str, int], "{}"),
    "JsonSchema": (outlines.types.JsonSchema({"type": "array", "items": {"type": "integer"}}), "[]"),
}
print("outlines", metadata.version("outlines"))
print("guess: each type lets the model write the empty value that it wants")
seen = {}
for name, (kind, wanted) in kinds.items():
    counted = [0]
    seen[name] = outlines.Generator(reader, kind)("Numbers: ", max_new_tokens=8)
    print(f"{name}: the model wants {wanted}, and writes {seen[name]}")
sys.exit([text == wanted for text, (_, wanted) in zip(seen.values(), kinds.values())] != [False, False, True, True])
PY
