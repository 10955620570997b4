#!/usr/bin/env bash
# transformers: tokenizer.json says how text is normalized and split before it is encoded. If tokenizer_config.json names
# one of the library's own tokenizer classes, AutoTokenizer takes vocabulary and merges from the file and the rest from
# the class: a normalizer or a split that was changed, which training used, is left out without a word. With
# PreTrainedTokenizerFast as the class, or the tokenizers library, the same file gives other tokens.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

folder = Path(sys.argv[1]) / "model"
folder.mkdir()
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {"<end>": 0} | {letter: at for at, letter in enumerate(letters, 1)} | {"12": 257}
own = Tokenizer(models.BPE(vocab=vocabulary, merges=[("1", "2")]))
own.normalizer = normalizers.Lowercase()
own.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
own.decoder = decoders.ByteLevel()
own.save(str(folder / "tokenizer.json"))
(folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


def tokens(kind):
    settings = {"tokenizer_class": kind, "bos_token": "<end>", "eos_token": "<end>", "unk_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return AutoTokenizer.from_pretrained(folder).tokenize("AB 12")


seen = {kind: tokens(kind) for kind in ("PreTrainedTokenizerFast", "GPT2Tokenizer")}
expected = own.encode("AB 12").tokens
print("transformers", transformers.__version__, "tokenizers", tokenizers.__version__)
print("guess: tokenizer.json, which is complete, decides: lower case, and a token for each digit")
print("tokenizers:", expected)
for kind, found in seen.items():
    print(f"AutoTokenizer, class {kind}:", found)
sys.exit(not (seen["PreTrainedTokenizerFast"] == expected and seen["GPT2Tokenizer"] == ["A", "B", "Ġ", "12"]))
PY
