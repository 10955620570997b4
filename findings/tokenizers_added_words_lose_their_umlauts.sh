#!/usr/bin/env bash
# tokenizers: a byte-level tokenizer (GPT-2, Llama 3, Qwen) decodes every token by its table of characters for bytes, and
# added tokens too, whose text is no such spelling. If all characters of an added word are in the table, which has those
# of Latin-1, each that is beyond ASCII ends up as a replacement character: German and French words are damaged, Greek or
# Japanese ones are not. Extending a vocabulary by the words of a language works in tests with some, and not with others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(letters)}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
words = ["für", "été", "naïve", "λόγος", "言葉"]
before = {word: tokenizer.decode(tokenizer.encode(word).ids) for word in words}
tokenizer.add_tokens(words)
after = {word: tokenizer.decode(tokenizer.encode(word).ids) for word in words}
print("tokenizers", tokenizers.__version__)
print("guess: a word that is added as one token is decoded to itself")
print("as bytes:", before)
print("as added tokens:", after)
lost = [word for word in words if after[word] != word]
sys.exit(not (before == {word: word for word in words} and lost == ["für", "été", "naïve"]))
PY
