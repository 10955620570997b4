#!/usr/bin/env bash
# llguidance: a bound changes how a number may be written. Without one, a {"type": "number"} may have an exponent; with
# minimum or maximum, however far off, it has none, though JSON schema bounds the value alone. A model that writes 6e-7
# for a learning rate or 1e9 for a count is kept from it by "minimum": 0, and its next tokens are those of another
# number: after the 6 it may only go on with digits, a point, or the end. Values outside a bound are forbidden in either
# notation.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check llguidance==1.9.1 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib import metadata

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
words.add_special_tokens(["</s>"])
count = words.get_vocab_size()
tokenizer = LLTokenizer(words.to_str(), n_vocab=count, eos_token=count - 1)


def admits(text, **bounds):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "number", **bounds}))
    matcher, ids = LLMatcher(tokenizer, grammar), words.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


texts = ["6e-7", "1e9", "2.5E+3", "0.0000006", "1000000000", "2500.0"]
cases = {"no bound": {}, "minimum 0": {"minimum": 0}, "maximum 1e12": {"maximum": 1e12}}
print("llguidance", metadata.version("llguidance"))
print("guess: all of", texts, "are numbers from 0 to 1e12, and admitted in each case")
seen = {name: [text for text in texts if admits(text, **bounds)] for name, bounds in cases.items()}
for name, admitted in seen.items():
    print(f"{name}: admits", admitted)
sys.exit([*seen.values()] != [texts, texts[3:], texts[3:]])
PY
