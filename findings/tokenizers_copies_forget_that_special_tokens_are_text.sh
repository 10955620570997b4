#!/usr/bin/env bash
# tokenizers: encode_special_tokens = True makes the text of a special token, such as <|im_end|>, plain text, so that
# what a user writes cannot end a turn. The setting is not part of the tokenizer's file, and is not in a copy either:
# after save, pickle or copy.deepcopy it is False, without a word. Whoever sends the tokenizer to another process, as
# data loaders and process pools do, has it in the main process and not in the others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import copy
import pickle
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({"hello": 0, "<": 1, "im_end": 2, ">": 3, "?": 4}, unk_token="?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.add_special_tokens(["<im_end>"])
words.encode_special_tokens = True
words.enable_padding(length=4, pad_id=4, pad_token="?")
copies = {
    "itself": words,
    "saved and loaded": Tokenizer.from_str(words.to_str()),
    "pickle": pickle.loads(pickle.dumps(words)),
    "copy.deepcopy": copy.deepcopy(words),
}
print("tokenizers", tokenizers.__version__)
print("guess: a copy encodes as the tokenizer does; padding, another setting of the same object, is copied")
ids = {name: each.encode("hello <im_end>").ids for name, each in copies.items()}
for name, each in copies.items():
    print(f"{name}: encode_special_tokens {each.encode_special_tokens}, ids {ids[name]}")
sys.exit(not (ids.pop("itself") == [0, 1, 2, 3] and all(each == [0, 5, 4, 4] for each in ids.values())))
PY
