#!/usr/bin/env bash
# tokenizers: training replaces the vocabulary of a tokenizer, and one expects it to be as one that was trained for the
# first time. The special tokens of before stay, at their old ids, beside the new vocabulary, which numbers its tokens
# from 0: where the new trainer does not name them, "<s>" and "a" are both 0, and a prompt with "<s>" is one with "a" to
# the model. A token that was added later keeps an id beyond the new vocabulary. Encoding shows the text that was meant,
# decoding drops the letter as a special token, and nothing is said. A pipeline that was read from a file, to train its
# like on other text, is such a tokenizer. Named in the new trainer, they agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def train(tokenizer, text, **options):
    trainer = trainers.BpeTrainer(vocab_size=60, show_progress=False, **options)
    tokenizer.train_from_iterator([text] * 20, trainer)


def again(**options):
    """What a tokenizer that is trained a second time makes of a text: tokens, ids, and the text that is decoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    train(tokenizer, "the quick brown fox", special_tokens=["<s>", "</s>"])
    train(tokenizer, "abc abd", **options)
    encoded = tokenizer.encode("<s> a b </s>")
    return encoded.tokens, encoded.ids, tokenizer.decode(encoded.ids)


print("tokenizers", tokenizers.__version__)
print("guess: four tokens have four ids, or training the second time leaves no <s>")
seen = {"not named": again(), "named": again(special_tokens=["<s>", "</s>"])}
for kind, (tokens, ids, text) in seen.items():
    print(f"seen: special tokens {kind} in the second training: {tokens} are {ids}, decoded as {text!r}")
tokens = ["<s>", "a", "b", "</s>"]
sys.exit(list(seen.values()) != [(tokens, [0, 0, 1, 1], ""), (tokens, [0, 2, 3, 1], "a b")])
PY
