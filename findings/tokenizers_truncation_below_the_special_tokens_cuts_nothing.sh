#!/usr/bin/env bash
# tokenizers: truncation counts the special tokens that a post-processor adds. A limit that is smaller than their number
# is not an error, and is not the limit either: nothing is cut, and a text of any length comes back whole. One or two
# tokens more, and the text is cut as asked. A budget that is computed as what is left of a context, and runs out, thus
# lets through the longest texts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import sys

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

words = Tokenizer(models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
)
text = "a " * 1000
lengths = {}
for limit in range(5):
    words.enable_truncation(limit)
    lengths[limit] = len(words.encode(text).ids)
print("tokenizers", tokenizers.__version__)
print("guess: a text of 1,000 words and 2 special tokens has at most as many tokens as the limit, or an error says why")
print("seen: tokens by limit:", lengths)
sys.exit(lengths != {0: 1002, 1: 1002, 2: 2, 3: 3, 4: 4})
PY
