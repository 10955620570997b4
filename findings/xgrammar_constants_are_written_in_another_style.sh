#!/usr/bin/env bash
# xgrammar: blanks between the parts of JSON are free by default, and with any_whitespace=False they are one each, as
# json.dumps writes them: {"a": [1, 2]}. A const or enum that holds a list or an object has none in either case. Beside
# free blanks a model that writes as json.dumps does is stopped after the colon, and with any_whitespace=False one answer
# has to be written in two styles: with blanks outside of the constant, and without them within it. The same object as
# properties has the blanks of the rest. llguidance admits each of these spellings, and so does a validator.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check xgrammar==0.2.8 llguidance==1.9.1 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib import metadata

import xgrammar
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

words = [chr(byte) for byte in range(128)] + ["</s>"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(words, xgrammar.VocabType.RAW, stop_token_ids=[128]))
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
letters = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
letters.add_special_tokens(["</s>"])
tokenizer = LLTokenizer(letters.to_str(), n_vocab=257, eos_token=256)
value = {"box": [1, 2]}
schema = json.dumps({"type": "object", "properties": {"area": {"enum": [value]}}, "required": ["area"]})
texts = {
    "json.dumps": json.dumps({"area": value}),
    "no blanks": json.dumps({"area": value}, separators=(",", ":")),
    "two styles": '{"area": {"box":[1,2]}}',
}


def by_xgrammar(text, **options):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema, **options))
    return matcher.accept_string(text) and matcher.accept_token(128)


def by_llguidance(text):
    matcher, ids = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema)), letters.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


print("xgrammar", metadata.version("xgrammar"), "llguidance", metadata.version("llguidance"))
print("guess: all are admitted; with any_whitespace=False those with the blanks of json.dumps")
seen = {
    "xgrammar": [name for name, text in texts.items() if by_xgrammar(text)],
    "xgrammar, any_whitespace=False": [name for name, text in texts.items() if by_xgrammar(text, any_whitespace=False)],
    "llguidance": [name for name, text in texts.items() if by_llguidance(text)],
}
for name, admitted in seen.items():
    print(f"{name}: admits", admitted)
sys.exit([*seen.values()] != [["no blanks", "two styles"], ["two styles"], [*texts]])
PY
