#!/usr/bin/env bash
# xgrammar: many models have more logits than their tokenizer has tokens, rounded up for speed. A mask made for the
# tokens covers whole words of 32 ids; applied to the logits, it forbids the padding within its last word and leaves all
# further padding as it was. Whether such an id can be generated under a grammar depends on a remainder: a test with 100
# tokens and 128 logits passes, 160 logits let 32 ids through, and a Python warning is all that is said. llguidance's
# function with the same signature forbids them all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 xgrammar==0.2.8
"$folder/venv/bin/pip" install -q --disable-pip-version-check llguidance==1.9.1 tokenizers==0.23.3
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import sys
import warnings
from importlib import metadata

import llguidance.torch
import torch
import xgrammar
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

warnings.simplefilter("ignore")
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = Tokenizer(models.BPE({**{letter: index for index, letter in enumerate(alphabet)}}, []))
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
words.add_special_tokens(["</s>"])
count, digit = words.get_vocab_size(), words.token_to_id("7")
theirs = LLTokenizer(words.to_str(), n_vocab=count, eos_token=count - 1)
matcher = LLMatcher(theirs, LLMatcher.grammar_from_regex("7"))
mask = llguidance.torch.allocate_token_bitmask(1, count)
llguidance.torch.fill_next_token_bitmask(matcher, mask)
info = xgrammar.TokenizerInfo(
    [words.id_to_token(index) for index in range(count)], xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[count - 1]
)
own = xgrammar.allocate_token_bitmask(1, count)
xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_grammar('root ::= "7"')).fill_next_token_bitmask(own)


def left(apply, mask, width):
    """How many ids stay possible among logits of this width, where the grammar allows one."""
    logits = torch.zeros(1, width)
    apply(logits, mask)
    return int(logits.isfinite().sum()), bool(logits.isfinite()[0, digit])


print("xgrammar", metadata.version("xgrammar"), "llguidance", metadata.version("llguidance"))
print("guess: the grammar allows one of", count, "tokens, and one id is left for any width of the logits")
seen = {}
for width in (count, 288, 320, 512):
    seen[width] = (left(xgrammar.apply_token_bitmask_inplace, own, width)[0],
                   left(llguidance.torch.apply_token_bitmask_inplace, mask, width)[0])
    print(f"{width} logits: xgrammar leaves {seen[width][0]} ids, llguidance {seen[width][1]}")
sys.exit(seen != {count: (1, 1), 288: (1, 1), 320: (33, 1), 512: (225, 1)})
PY
