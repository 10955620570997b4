#!/usr/bin/env bash
# tokenizers: add_tokens adds a text as it is given, and the vocabulary lists it so. With a normalizer the token is
# another text: "BERT" added to a tokenizer that lowercases is decoded as "bert", and id_to_token gives a name that
# token_to_id does not know. A token list that is written to a file and read back loses its ids, and a decoded text no
# longer has the word that was added to keep it. As a special token, or with normalized=False, the text stays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers


def added(token):
    """The ids of " BERT", and their text, the name of the token, and the id of that name."""
    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer, words.normalizer = pre_tokenizers.Whitespace(), normalizers.Lowercase()
    words.add_tokens([token])
    ids = words.encode("a BERT").ids
    name = words.id_to_token(2)
    return ids, words.decode(ids), name, words.token_to_id(name), words.get_vocab().get("BERT")


print("tokenizers", tokenizers.__version__)
print("guess: the added token is decoded as BERT, and its name has its id")
seen = {"added": added("BERT"), "with normalized=False": added(AddedToken("BERT", normalized=False))}
for name, (ids, text, token, again, listed) in seen.items():
    print(f"{name}: ids {ids}, decoded {text!r}, named {token!r}, id of that name {again}, BERT in get_vocab {listed}")
sys.exit(
    seen != {
        "added": ([0, 2], "a bert", "bert", None, 2),
        "with normalized=False": ([0, 2], "a BERT", "BERT", 2, 2),
    }
)
PY
