#!/usr/bin/env bash
# llguidance: Python's json.dumps writes every letter beyond ASCII as an escape, \u00e9 for é, and a string of a schema
# is one in either notation. llguidance admits the letter and forbids its escape, though it admits \u0001, \n and \". A
# model that goes on as its prompt was written, in JSON by json.dumps, has its next token forbidden after the backslash,
# and has to write another escape or none. Nothing in the schema says so, and a text in ASCII does not show it. xgrammar
# admits both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 xgrammar==0.2.8 llguidance==1.9.1
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib import metadata

import xgrammar
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

end = 256
words = [*(bytes([byte]) for byte in range(end)), b"</s>"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(words, stop_token_ids=[end]))
schema = {"type": "string"}


class Bytes:
    eos_token_id, bos_token_id, tokens, special_token_ids = end, None, words, [end]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def by_xgrammar(text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    return all(matcher.accept_token(token) for token in [*text.encode(), end])


def by_llguidance(text):
    tokens = [*text.encode(), end]
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema)).validate_tokens(tokens) == len(tokens)


print("llguidance", metadata.version("llguidance"), "xgrammar", metadata.version("xgrammar"))
print("guess: a string is admitted in both notations")
values = {"plain": "cafe", "line break": "a\nb", "control": "\x01", "accent": "caf\u00e9", "script": "\u65e5\u672c"}
seen = {}
for name, value in values.items():
    texts = json.dumps(value), json.dumps(value, ensure_ascii=False)
    seen[name] = [admits(text) for admits in (by_llguidance, by_xgrammar) for text in texts]
    print(f"seen: {name}: {texts[0]} by llguidance {seen[name][0]}, by xgrammar {seen[name][2]};", end=" ")
    print(f"unescaped: {seen[name][1]}, {seen[name][3]}")
beyond = [name for name, admitted in seen.items() if not all(admitted)]
sys.exit(not (beyond == ["accent", "script"] and all(seen[name] == [False, True, True, True] for name in beyond)))
PY
