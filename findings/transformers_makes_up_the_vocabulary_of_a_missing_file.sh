#!/usr/bin/env bash
# transformers: a folder whose tokenizer.json was not copied still has a tokenizer. If tokenizer_config.json names one of
# the library's own classes, that class starts with a vocabulary of its own: special tokens at made-up ids, and nothing
# for text. Prompts become empty, or a row of unknown tokens, without a word. A check that loads a tokenizer to see
# whether a folder is complete passes. PreTrainedTokenizerFast, which has no vocabulary of its own, raises.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import sys
from pathlib import Path

import transformers
from transformers import AutoTokenizer

folder = Path(sys.argv[1]) / "model"
folder.mkdir()


def found(kind):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        return type(error).__name__
    return len(tokenizer), tokenizer("Name three fjords.", add_special_tokens=False).input_ids


seen = {kind: found(f"{kind}Tokenizer") for kind in ("Llama", "Qwen2", "GPT2", "Gemma")}
generic = found("PreTrainedTokenizerFast")
print("transformers", transformers.__version__)
print("guess: without tokenizer.json, tokenizer.model or vocab.json there is no vocabulary, and loading is an error")
for kind, (size, ids) in seen.items():
    print(f"seen: {kind}Tokenizer loads with {size} tokens, and 'Name three fjords.' has the ids {ids}")
print("seen: PreTrainedTokenizerFast raises", generic)
made_up = all(size < 10 and len(ids) < 2 for size, ids in seen.values())
sys.exit(not (made_up and generic == "ValueError"))
PY
