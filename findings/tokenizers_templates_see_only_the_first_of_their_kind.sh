#!/usr/bin/env bash
# tokenizers: a post-processor adds the special tokens, and Sequence joins several: one that adds a token at the
# beginning, and one for the end. The second does nothing then, while its token is still counted, so that a truncated
# text is one shorter than it may be. After a template the text is two parts, the added token and the rest, which the
# next one takes for a pair: a template without a form for pairs adds nothing to pairs, here as in a call with two
# texts, and BertProcessing puts its separator after the first token. No error says so. One template with all tokens is
# right, and so is a Sequence whose other members add none, as in Llama 3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

words = ["the", "cat", "[A]", "[B]"]
begin, end = ("[A]", 2), ("[B]", 3)
Template = processors.TemplateProcessing
first, last = Template("[A] $0", special_tokens=[begin]), Template("$0 [B]", special_tokens=[end])
both = Template("[A] $0 [B]", special_tokens=[begin, end])
cases = {
    "one template": (both, "[A] the cat [B]", "[A] the cat [B]"),
    "two templates": (processors.Sequence([first, last]), "[A] the cat [B]", "[A] the cat"),
    "two, the end first": (processors.Sequence([last, first]), "[A] the cat [B]", "the cat [B]"),
    "a template and BertProcessing": (
        processors.Sequence([first, processors.BertProcessing(end, begin)]),
        "[A] [A] the cat [B]",
        "[A] [A] [B] the cat [B]",
    ),
}


def tokenizer(post):
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="the"))
    made.pre_tokenizer, made.post_processor = pre_tokenizers.WhitespaceSplit(), post
    return made


print("tokenizers", tokenizers.__version__)
same = True
for name, (post, guess, expected) in cases.items():
    seen = " ".join(tokenizer(post).encode("the cat").tokens)
    print(f"guess, {name}: {guess}; seen: {seen}")
    same &= seen == expected
pair = tokenizer(both).encode("the", "cat").tokens
print("guess, one template, two texts: an error, or [A] the cat [B]; seen:", " ".join(pair))
cut = tokenizer(processors.Sequence([first, last]))
cut.enable_truncation(3)
cut = cut.encode("the cat the cat").tokens
print("guess, two templates, at most three tokens: [A] the [B]; seen:", " ".join(cut))
sys.exit(not same or (pair, cut) != (["the", "cat"], ["[A]", "the"]))
PY
