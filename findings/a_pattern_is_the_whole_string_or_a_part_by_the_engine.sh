#!/usr/bin/env bash
# xgrammar and outlines-core: a pattern in a JSON schema is searched for in the string: [0-9] means that it has a digit.
# Both take it for the whole string: one digit and nothing else, and "^https" for the five letters. llguidance searches,
# as JSON schema's validators do. A schema that is moved from one engine to another admits other answers; "has a digit",
# "begins with", "ends in" become answers of one character or a bare prefix, all of them valid. A pattern with .* at
# both ends is the same in all three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 xgrammar==0.2.8
"$folder/venv/bin/pip" install -q --disable-pip-version-check outlines-core==0.2.14 llguidance==1.9.1 jsonschema==4.26.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import json
import re
import sys
from importlib import metadata

import xgrammar
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from outlines_core.json_schema import build_regex_from_schema

end = 256
words = [*(bytes([byte]) for byte in range(end)), b"</s>"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(words, stop_token_ids=[end]))


class Bytes:
    eos_token_id, bos_token_id, tokens, special_token_ids = end, None, words, [end]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))


def by_xgrammar(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    return all(matcher.accept_token(token) for token in [*text.encode(), end])


def by_outlines(schema, text):
    return re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None


def by_llguidance(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


def by_jsonschema(schema, text):
    return Draft202012Validator(schema).is_valid(json.loads(text))


names = ("xgrammar", "outlines-core", "llguidance", "jsonschema")
engines = (by_xgrammar, by_outlines, by_llguidance, by_jsonschema)
print(*(f"{name} {metadata.version(name)}" for name in names))
print("guess: all of them admit the same strings")
seen = {}
for pattern, text in (("[0-9]", '"room 7b"'), ("^https", '"https://a.org"'), (".*[0-9].*", '"room 7b"')):
    seen[pattern] = [engine({"type": "string", "pattern": pattern}, text) for engine in engines]
    print(f"seen: {pattern} for {text}:", ", ".join(f"{name} {admits}" for name, admits in zip(names, seen[pattern])))
sys.exit(list(seen.values()) != [[False, False, True, True], [False, False, True, True], [True] * 4])
PY
