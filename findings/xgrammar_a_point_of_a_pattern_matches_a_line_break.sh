#!/usr/bin/env bash
# xgrammar and llguidance: a point in a regular expression is any character but a line break, in Python, JavaScript,
# Rust and JSON schema. In xgrammar it is any character at all: "Answer: .*", to have one line, admits
# more lines, and a model that ends its line goes on, up to the limit of tokens. A pattern of two lines, ".*\n.*",
# no longer says where the first ends. llguidance keeps to the line. A schema's "pattern" is another matter: there the
# line break is left out. The same holds for a pattern that is the content of a tag; it also passes over the tag's end.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check xgrammar==0.2.8 llguidance==1.9.1 tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import json
import re
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


def xgrammar_admits(grammar, text):
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(128)


def llguidance_admits(pattern, text):
    matcher, ids = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(pattern)), letters.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


pattern, texts = "Answer: .*", ["Answer: 4", "Answer: 4\n\nAnd now to something else"]
tag = {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": ".*"}, "end": "</a>"}
seen = {
    "re": [bool(re.fullmatch(pattern, text)) for text in texts],
    "llguidance": [llguidance_admits(pattern, text) for text in texts],
    "xgrammar": [xgrammar_admits(compiler.compile_regex(pattern), text) for text in texts],
}
string = compiler.compile_json_schema(json.dumps({"type": "string", "pattern": f"^{pattern}$"}))
in_schema = [xgrammar_admits(string, f'"{text}"') for text in texts]
tagged = compiler.compile_structural_tag({"type": "structural_tag", "format": tag})
in_tag = xgrammar_admits(tagged, "<a>4</a>\n and </a>")
print("xgrammar", metadata.version("xgrammar"), "llguidance", metadata.version("llguidance"))
print("guess: each admits the one line, and refuses the three")
for name, admitted in seen.items():
    print(f"{name}: one line {admitted[0]}, three lines {admitted[1]}")
print(f"xgrammar, pattern of a schema: {in_schema}; a tag goes on after its end: {in_tag}")
sys.exit((*seen.values(), in_schema, in_tag) != ([True, False], [True, False], [True, True], [True, False], True))
PY
