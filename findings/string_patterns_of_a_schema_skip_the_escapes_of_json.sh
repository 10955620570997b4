#!/usr/bin/env bash
# xgrammar and outlines-core: the pattern of a string in a JSON schema is about its value; in the JSON text a quote, a
# backslash and a line break of that value are escaped. Both take the pattern for the text between the quotes. A pattern
# with one of these characters admits only text that no JSON parser reads, and forbids the right one; with outlines-core
# an escape also spells what a class forbids. What is guaranteed to be valid then fails in json.loads, at the first
# quotation or path.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 xgrammar==0.2.8 outlines-core==0.2.14
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import json
import re
import sys
from importlib import metadata

import xgrammar
from outlines_core import Guide, Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

END = 128
tokens = xgrammar.TokenizerInfo([*(bytes([byte]) for byte in range(END)), b"</s>"], stop_token_ids=[END])
compiler = xgrammar.GrammarCompiler(tokens)
vocabulary = Vocabulary(END, {chr(byte): [byte] for byte in range(1, END)})


def by_xgrammar(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema))
    return all(matcher.accept_token(token) for token in [*text.encode(), END])


def by_outlines(schema, text):
    guide = Guide(Index(build_regex_from_schema(schema), vocabulary))
    for token in text.encode():
        if token not in guide.get_tokens():
            return False
        guide.advance(token)
    return guide.is_finished() or END in guide.get_tokens()


def is_of(pattern, text):
    """Whether the text is JSON and its string has the pattern."""
    try:
        return bool(re.search(pattern, json.loads(text)))
    except json.JSONDecodeError:
        return False


cases = [
    ("^say:\".*$", '"say:"x"'), ("^say:\".*$", '"say:\\"x"'), ("^C:\\\\[a-z]$", '"C:\\q"'),
    ("^C:\\\\[a-z]$", '"C:\\\\q"'), ("^a\\nb$", '"a\nb"'), ("^a\\nb$", '"a\\nb"'),
    ("^[^<]+$", '"a\\u003c"'), ("^[a-z]+$", '"ab"'),
]  # fmt: skip
print("xgrammar", metadata.version("xgrammar"), "outlines-core", metadata.version("outlines-core"))
print("guess: both admit the texts that are JSON and whose string has the pattern, and no others")
wrong = {"xgrammar": 0, "outlines-core": 0}
for pattern, text in cases:
    schema = json.dumps({"type": "string", "pattern": pattern})
    right, admits = is_of(pattern, text), (by_xgrammar(schema, text), by_outlines(schema, text))
    wrong = {name: count + (seen != right) for (name, count), seen in zip(wrong.items(), admits)}
    print(f"pattern {pattern!r}, text {text!r}: right {right}, xgrammar {admits[0]}, outlines-core {admits[1]}")
sys.exit(wrong != {"xgrammar": 6, "outlines-core": 7})
PY
