#!/usr/bin/env bash
# transformers and tokenizers: a call with truncation=True leaves its max_length in the tokenizer, and save_pretrained
# writes it to tokenizer.json. transformers resets it at its next call and never shows it; whatever reads the file with
# the tokenizers library itself cuts all texts at that length, without an error. A script that measures or prepares a few
# texts before it saves therefore publishes a tokenizer that cuts prompts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder/saved" <<'PY'
import sys

import tokenizers
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

words = "the quick brown fox jumps over the lazy dog".split()
plain = Tokenizer(models.WordLevel({word: at for at, word in enumerate(["<unk>", *dict.fromkeys(words)])}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer, text = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>"), " ".join(words)


def lengths():
    """The tokens of the text by tokenizers and by transformers, both from the saved folder."""
    tokenizer.save_pretrained(sys.argv[1])
    by_tokenizers = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json").encode(text).ids
    return len(by_tokenizers), len(AutoTokenizer.from_pretrained(sys.argv[1])(text).input_ids)


before = lengths()
tokenizer(text, truncation=True, max_length=4)
after = lengths()
print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
print(f"guess: what is saved does not depend on earlier calls, so that {len(words)} words are {len(words)} tokens")
print("before a call with truncation: tokenizers", before[0], "transformers", before[1])
print("after it: tokenizers", after[0], "transformers", after[1])
sys.exit((before, after) != ((9, 9), (4, 9)))
PY
