#!/usr/bin/env bash
# tiktoken and tokenizers: a pattern says how text is cut before its bytes are merged. In tiktoken the matches are
# encoded and what lies between them is dropped, with no error and no unknown token, though its vocabulary has all 256
# bytes and decoding what was encoded gives another text. The same pattern in tokenizers' Split keeps what lies
# between the matches, whichever part of it they are. A pattern with a gap that was carried over, or written anew for
# one language, loses digits, blanks or signs of every prompt.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tiktoken==0.14.0 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tiktoken
import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

text = "pay 12.50 now"
patterns = {"words alone": r" ?[a-z]+", "words and digits": r" ?[a-z]+| ?[0-9]+", "everything": r" ?[a-z]+|[^a-z]"}
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
seen = {}
print("tiktoken", tiktoken.__version__, "tokenizers", tokenizers.__version__)
print("guess: with all 256 bytes in the vocabulary, decoding gives the text that was encoded")
for name, pattern in patterns.items():
    encoding = tiktoken.Encoding(
        "bytes", pat_str=pattern, mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={}
    )
    tokenizer = Tokenizer(models.BPE(vocab={letter: token for token, letter in enumerate(letters)}, merges=[]))
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    seen[name] = encoding.decode(encoding.encode(text)), tokenizer.decode(tokenizer.encode(text).ids)
    print(f"a pattern for {name}: tiktoken gives {seen[name][0]!r}, tokenizers {seen[name][1]!r}")
expected = [("pay now", text), ("pay 1250 now", text), (text, text)]
sys.exit(list(seen.values()) != expected)
PY
