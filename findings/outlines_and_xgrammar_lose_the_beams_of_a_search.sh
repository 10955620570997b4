#!/usr/bin/env bash
# outlines and xgrammar: a grammar masks the logits of a row by what the row has written. A beam search of transformers
# moves texts from row to row at each step, and no processor is told so: the grammar of row 2 goes on with the text of
# row 1. Where all texts are alike in form, as numbers or dates of a fixed length, every row is at the same place of the
# pattern, and nothing is wrong, which is what a first test has. As soon as two beams differ in form the call ends in an
# error about states or tokens, or an assertion without words, that does not speak of beams. One beam, and samples, are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6 outlines==1.3.3
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14 xgrammar==0.2.8
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import re
import sys
from importlib import metadata

import torch
import transformers
import xgrammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from xgrammar.contrib.hf import LogitsProcessor

import outlines

transformers.logging.set_verbosity_error()
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
tokenizer.add_special_tokens(["</s>"])
tokens = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
ids = {"bos_token_id": None, "eos_token_id": 256, "pad_token_id": 256}
model = LlamaForCausalLM(LlamaConfig(vocab_size=257, **sizes, **ids)).eval()
with torch.no_grad():
    model.lm_head.weight.mul_(20)
reader = outlines.from_transformers(model, tokens)
info = xgrammar.TokenizerInfo.from_huggingface(tokens, vocab_size=257, stop_token_ids=[256])


def by_outlines(pattern, **options):
    return outlines.Generator(reader, outlines.types.Regex(pattern))("ab", max_new_tokens=20, **options)


def by_xgrammar(pattern, **options):
    grammar = LogitsProcessor(xgrammar.GrammarCompiler(info).compile_regex(pattern))
    prompt = tokens("ab", return_tensors="pt")
    written = model.generate(**prompt, max_new_tokens=20, logits_processor=[grammar], **options)
    return tokens.decode(written[0, 2:], skip_special_tokens=True)


def result(by, pattern, **options):
    """ "right", what was written if it does not follow the pattern, or the error."""
    try:
        text = by(pattern, **options)
    except Exception as error:
        return type(error).__name__
    return "right" if re.fullmatch(pattern, text) else text


patterns = {"fixed": "[a-c][0-9]{3}z", "two lengths": "(a[0-9]{2}z|b[0-9]{3}y|c[0-9]x)!"}
print("outlines", metadata.version("outlines"), "xgrammar", metadata.version("xgrammar"))
print("guess: four beams follow a pattern as one does, or are refused at once")
seen = {}
for by in (by_outlines, by_xgrammar):
    for beams in (1, 4):
        key = f"{by.__name__}, {beams} beam{'s' if beams > 1 else ''}"
        seen[key] = [result(by, pattern, num_beams=beams) for pattern in patterns.values()]
        print(f"{key}: " + ", ".join(f"{name} {found}" for name, found in zip(patterns, seen[key])))
right, first = ["right", "right"], "right"
sys.exit([*seen.values()] != [right, [first, "ValueError"], right, [first, "AssertionError"]])
PY
