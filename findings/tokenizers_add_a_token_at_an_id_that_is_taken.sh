#!/usr/bin/env bash
# tokenizers: an added token gets the number of tokens as its id, and not the next free one. Where a vocabulary has gaps,
# as after tokens were pruned with their ids kept, that id belongs to another token: both are encoded to it, and decoding
# shows the added one in place of the other. Nothing is said, and ids within the model's embedding look right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 4, "three": 5}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
before = tokenizer.decode(tokenizer.encode("one two").ids)
tokenizer.add_special_tokens([AddedToken("<call>", special=True)])
ids = {word: tokenizer.encode(word).ids for word in ("two", "<call>")}
after = tokenizer.decode(tokenizer.encode("one two").ids, skip_special_tokens=False)
print("tokenizers", tokenizers.__version__)
print("guess: ids are 0, 1, 4 and 5, so that the added token gets 6, or a free one")
print("seen: ids", ids, "and decoding 'one two' gives", repr(before), "before and", repr(after), "after")
sys.exit(not (ids["two"] == ids["<call>"] == [4] and before == "one two" and "<call>" in after))
PY
