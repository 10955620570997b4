#!/usr/bin/env bash
# tokenizers: add_tokens with a word that the vocabulary has already adds nothing to it, and still changes how text is
# encoded. The word becomes an added token, which is cut out of the text before the merges: "the" is then a token inside
# of "other" and "weather", whose own tokens are no longer used. The number that is returned, described as that of the
# tokens created, is 1, and the size of the vocabulary is what it was: "add what may be missing" damages a tokenizer
# where nothing is missing, and a model sees words as it never did in training.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers

merges = [("t", "h"), ("th", "e"), ("o", "the"), ("othe", "r")]
merges += [("w", "e"), ("we", "a"), ("wea", "the"), ("weathe", "r")]
letters = sorted(set("".join(a + b for a, b in merges)))
vocabulary = {token: index for index, token in enumerate([*letters, *(a + b for a, b in merges)])}


def fresh():
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


text = "the other weather"
plain, added, whole = fresh(), fresh(), fresh()
number = added.add_tokens(["the"])
whole.add_tokens([tokenizers.AddedToken("the", single_word=True)])
seen = {"before": plain.encode(text).tokens, "after": added.encode(text).tokens}
print("tokenizers", tokenizers.__version__)
print("guess: adding a token of the vocabulary returns 0 and leaves the tokens of a text as they are")
print(f"seen: returned {number}, size {plain.get_vocab_size()} before and {added.get_vocab_size()} after")
for name, tokens in seen.items():
    print(f"seen, {name}: {tokens}")
kept = whole.encode(text).tokens == seen["before"]
print("with single_word the tokens are those before:", kept)
same_size = plain.get_vocab() == added.get_vocab()
after = ["the", "o", "the", "r", "wea", "the", "r"]
sys.exit(not (number == 1 and same_size and kept and seen == {"before": text.split(), "after": after}))
PY
