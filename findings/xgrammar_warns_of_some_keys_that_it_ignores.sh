#!/usr/bin/env bash
# xgrammar: a schema may say more than a grammar can hold. For multipleOf, and for a oneOf whose branches overlap, a
# warning names what is not followed, and one takes no warning for a schema that is. not, if and then, uniqueItems,
# dependentRequired, a bound without a type, a bound beside $ref or beside an enum, and a required name that properties
# lack are passed over as well, and nothing is said: what the schema forbids is admitted, and a client that relies on
# the guarantee fails. llguidance refuses such a schema, or such a text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 xgrammar==0.2.8 llguidance==1.9.1
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - "$folder" <<'PY'
import json
import os
import sys
from importlib import metadata

import llguidance
import xgrammar

whole, word = {"type": "integer"}, {"type": "string"}
a_whole = {"type": "object", "properties": {"a": whole}}
word_by_name = {"$ref": "#/$defs/word", "maxLength": 1}
warned = {
    "multipleOf": ({"type": "number", "multipleOf": 0.5}, "0.3"),
    "oneOf": ({"oneOf": [whole, {"type": "number"}]}, "1"),
}
silent = {
    "not": ({"not": word}, '"a"'),
    "if and then": ({"if": word, "then": {"maxLength": 1}}, '"abc"'),
    "uniqueItems": ({"type": "array", "items": whole, "uniqueItems": True}, "[1, 1]"),
    "dependentRequired": (a_whole | {"dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
    "minimum without a type": ({"minimum": 5}, "3"),
    "maxLength beside $ref": ({"type": "array", "items": word_by_name, "$defs": {"word": word}}, '["xyz"]'),
    "minimum beside an enum": ({"type": "integer", "enum": [1, 2], "minimum": 2}, "1"),
    "required, not in properties": (a_whole | {"required": ["a", "z"]}, '{"a": 1}'),
}
bytes_and_end = [bytes([byte]) for byte in range(256)] + [b"</s>"]
tokens = xgrammar.TokenizerInfo(bytes_and_end, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)


class Bytes:
    """A tokenizer for llguidance, with a token per byte."""

    tokens, special_token_ids, eos_token_id, bos_token_id = bytes_and_end, [256], 256, None

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


wrapped = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def by_xgrammar(schema, text):
    """Whether the text is admitted, and whether anything was written to the log."""
    with open(sys.argv[1] + "/log", "w+") as log:
        screen = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
        finally:
            os.dup2(screen, 2)
        log.seek(0)
        said = "Warning" in log.read()
    return matcher.accept_string(text) and matcher.accept_token(256), said


def by_llguidance(schema, text):
    matcher = llguidance.LLMatcher(wrapped, llguidance.LLMatcher.grammar_from_json_schema(schema))
    return matcher.is_error() is False and matcher.validate_tokens([*text.encode(), 256]) == len(text.encode()) + 1


print("xgrammar", metadata.version("xgrammar"), "llguidance", metadata.version("llguidance"))
print("guess: each text, which its schema forbids, is not admitted, or a warning names the key")
right = True
for name, (schema, text) in {**warned, **silent}.items():
    admitted, said = by_xgrammar(schema, text)
    other = by_llguidance(schema, text)
    print(f"seen: {name}: admitted by xgrammar {admitted}, with a warning {said}; admitted by llguidance {other}")
    right &= admitted and said == (name in warned) and not other
sys.exit(not right)
PY
