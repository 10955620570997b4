#!/usr/bin/env bash
# xgrammar: a structural tag of the type triggered_tags lets a model write freely, until it begins a call of a tool, and
# gives the call its form. at_least_one=True asks for at least one call, as tool_choice="required" does. It takes the
# free text away as well: the answer has to begin with the call, at its first character, and a model that is used to
# explain or think first, "I will look it up. <call ...", cannot. Text after the first call stays free, unless
# stop_after_first is set too. That the call comes at all, and where text may stand, is one option and not two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.23.0 numpy==2.4.6 xgrammar==0.2.8
"$folder/venv/bin/python" - <<'PY'
import sys
from importlib import metadata

import xgrammar

words = [chr(byte) for byte in range(128)] + ["</s>"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(words, xgrammar.VocabType.RAW, stop_token_ids=[128]))
integer = {"type": "json_schema", "json_schema": {"type": "integer"}}
call = {"type": "tag", "begin": "<call add>", "content": integer, "end": "</call>"}


def admits(text, **options):
    tags = {"type": "triggered_tags", "triggers": ["<call "], "tags": [call], **options}
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag({"type": "structural_tag", "format": tags}))
    return matcher.accept_string(text) and matcher.accept_token(128)


texts = {
    "no call": "I do not know.",
    "call": "<call add>1</call>",
    "call and text": "<call add>1</call> So it is.",
    "text and call": "I will look it up. <call add>1</call>",
}
print("xgrammar", metadata.version("xgrammar"))
print("guess: at_least_one=True forbids the answer without a call, and no other")
free = [name for name, text in texts.items() if admits(text)]
required = [name for name, text in texts.items() if admits(text, at_least_one=True)]
print("at_least_one=False: admits", free)
print("at_least_one=True: admits", required)
sys.exit((free, required) != ([*texts], ["call", "call and text"]))
PY
