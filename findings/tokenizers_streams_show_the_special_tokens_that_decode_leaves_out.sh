#!/usr/bin/env bash
# tokenizers: decode leaves special tokens out unless one asks for them. A DecodeStream, which gives the same text token
# by token, shows them unless one asks not to: the argument has the same name and the opposite default. A server that
# decodes a whole answer and streams another with the defaults sends two texts, one with <|im_end|> at its end.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
words.add_special_tokens(["<|im_end|>"])
ids = words.encode("Yes<|im_end|>").ids


def streamed(stream):
    return "".join(stream.step(words, token) or "" for token in ids)


whole, default, asked = words.decode(ids), streamed(DecodeStream()), streamed(DecodeStream(skip_special_tokens=True))
print("tokenizers", tokenizers.__version__)
print("guess: a stream gives the text of decode")
print(f"seen: decode {whole!r}, a stream {default!r}, a stream with skip_special_tokens=True {asked!r}")
sys.exit(not (whole == asked == "Yes" and default == "Yes<|im_end|>"))
PY
