#!/usr/bin/env bash
# kitoken: reads the tokenizer.json of most models, and gives the tokens of their text. Tokens that were added by hand
# differ: lstrip and rstrip (take the blanks beside it), single_word (only as a whole word) are dropped when the file is
# read, and of two added tokens that begin alike the shorter one wins. Chat markers and mask tokens are such tokens, and
# without a marker in the text everything agrees: tests on plain text pass, prompts are other ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check kitoken==0.11.1 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import kitoken
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def both(text, *added):
    """The tokens of a text in each library."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words.add_tokens(list(added))
    theirs = kitoken.Kitoken.from_tokenizers(words.to_str().encode()).encode(text, True)
    names = [words.id_to_token(token).replace("\u0120", " ") for token in theirs]
    return [token.replace("\u0120", " ") for token in words.encode(text).tokens], names


cases = {
    "no flags": ("a <m> b", AddedToken("<m>", normalized=False)),
    "lstrip": ("a <m> b", AddedToken("<m>", lstrip=True, normalized=False)),
    "rstrip": ("a <m> b", AddedToken("<m>", rstrip=True, normalized=False)),
    "single_word, in a word": ("moon on", AddedToken("on", single_word=True, normalized=False)),
    "a longer one": ("a<m>b", AddedToken("<m", normalized=False), AddedToken("<m>", normalized=False)),
}
print("kitoken", metadata.version("kitoken"), "tokenizers", tokenizers.__version__)
print("guess: both give the same tokens")
differ = {}
for name, case in cases.items():
    one, other = both(*case)
    differ[name] = one != other
    print(f"{name}: {case[0]!r}: tokenizers {one}, kitoken {other}")
sys.exit([*differ.values()] != [False, True, True, True, True])
PY
