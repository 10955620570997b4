#!/usr/bin/env bash
# xgrammar: a bound on the length of a string changes which characters it may have. Without minLength and maxLength a
# string may have escapes; with either, however large, it has none: a model cannot write a line break, a quote or a
# backslash there, though JSON schema counts each as one character. A maxLength that was added as a safeguard against
# endless answers silently forbids paragraphs, quotations and code in them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 xgrammar==0.2.8
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib import metadata

import xgrammar

end = 256
tokens = xgrammar.TokenizerInfo([*(bytes([byte]) for byte in range(end)), b"</s>"], stop_token_ids=[end])
compiler = xgrammar.GrammarCompiler(tokens)


def admits(text, **bounds):
    grammar = compiler.compile_json_schema(json.dumps({"type": "string", **bounds}))
    matcher = xgrammar.GrammarMatcher(grammar)
    return all(matcher.accept_token(token) for token in [*json.dumps(text).encode(), end])


cases = {"no bound": {}, "maxLength 1000": {"maxLength": 1000}, "minLength 1": {"minLength": 1}}
texts = ["plain", 'a "quote"', "two\nlines", "a\\b"]
print("xgrammar", metadata.version("xgrammar"))
print("guess: all of", texts, "are strings of 1 to 1000 characters, and admitted in each case")
seen = {name: [text for text in texts if admits(text, **bounds)] for name, bounds in cases.items()}
for name, admitted in seen.items():
    print(f"{name}: admits", admitted)
sys.exit(seen != {"no bound": texts, "maxLength 1000": ["plain"], "minLength 1": ["plain"]})
PY
