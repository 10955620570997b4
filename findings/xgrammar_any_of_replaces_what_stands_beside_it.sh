#!/usr/bin/env bash
# xgrammar: anyOf adds to what stands beside it in a schema: "an object with a and b, of which a or b is required" is
# written as the object and an anyOf of two lists. xgrammar takes the anyOf alone: type, properties and bounds beside it
# have no effect, and a number, a string or a list is admitted where the schema asks for an object. Nothing is said,
# while for several allOf, and for a pattern with a length, a warning names what is left out. llguidance keeps both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 xgrammar==0.2.8
"$folder/venv/bin/pip" install -q --disable-pip-version-check llguidance==1.9.1 jsonschema==4.26.0
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import json
import sys
from importlib import metadata

import xgrammar
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

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


def by_llguidance(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


def by_jsonschema(schema, text):
    return Draft202012Validator(schema).is_valid(json.loads(text))


def names(engine, schema, texts):
    return [text for text in texts if engine(schema, text)]


number = {"type": "integer"}
either = {
    "type": "object",
    "properties": {"a": number, "b": number},
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
}
bounded = {"type": "integer", "minimum": 1, "anyOf": [{"maximum": 5}, {"minimum": 10}]}
cases = [(either, ['{"a": 1}', '{"b": 1}', "{}", "7", '"x"']), (bounded, ["4", "12", "7", "0", '"x"'])]
engines = {"jsonschema": by_jsonschema, "llguidance": by_llguidance, "xgrammar": by_xgrammar}
print(*(f"{name} {metadata.version(name)}" for name in engines))
print("guess: each admits what jsonschema takes for valid")
right = True
for schema, texts in cases:
    print(json.dumps(schema))
    seen = {name: names(engine, schema, texts) for name, engine in engines.items()}
    for name, admitted in seen.items():
        print(f"seen: {name} admits", *admitted)
    right &= list(seen.values()) == [texts[:2], texts[:2], texts]
sys.exit(not right)
PY
