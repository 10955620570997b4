#!/usr/bin/env bash
# outlines and transformers: min_new_tokens keeps a model from ending early, by forbidding the end token. A pattern or a
# schema forbids all other tokens once it is complete. Together nothing is allowed, all logits are minus infinity, and
# greedy decoding writes the first token of the vocabulary, again and again, up to the minimum: "c391z!!!!!" for a pattern
# that ends in z. The guarantee of the form is gone, without a word. A sample raises an error about the probabilities
# there, and so does xgrammar's processor, greedy as well. A setting for all calls of an evaluation does this.
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


pattern, options = "[a-c][0-9]{3}z", {"min_new_tokens": 10}
print("outlines", metadata.version("outlines"), "xgrammar", metadata.version("xgrammar"))
print("guess: the text ends where the pattern is complete, or the two are refused")
seen = {}
for by in (by_outlines, by_xgrammar):
    for sampled in (False, True):
        plain = result(by, pattern, do_sample=sampled)
        seen[by.__name__, sampled] = (plain, result(by, pattern, do_sample=sampled, **options))
        print(f"{by.__name__}, do_sample={sampled}: without a minimum {plain}, with it {seen[by.__name__, sampled][1]}")
filled = seen["by_outlines", False][1]
assert letters[0] == "!"
rest = [seen["by_outlines", True], seen["by_xgrammar", False], seen["by_xgrammar", True]]
errors = [("right", "RuntimeError"), ("right", "AssertionError"), ("right", "RuntimeError")]
sys.exit(not (len(filled) == 10 and re.fullmatch(pattern + "!{5}", filled) and rest == errors))
PY
