#!/usr/bin/env bash
# openai-harmony: the tools of gpt-oss are shown to the model in the notation of TypeScript, written from their JSON
# schemas. What is written often is not the schema's type. A list of "x" or "y" becomes "x" | "y"[], which is the word x
# or a list of ys. Optional[int] of Pydantic, an anyOf, and its nested models, a $ref, become any: the model is told
# nothing of their fields. So do const and enumerated numbers lose their values. A second line of a description stands
# there as code. oneOf, which generators write less often, is shown.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check openai-harmony==0.0.8 bpe-openai==0.1.4
TIKTOKEN_ENCODINGS_BASE="$folder" "$folder/venv/bin/python" - "$folder" <<'PY'
import base64
import sys
from importlib import metadata

import bpe_openai
from openai_harmony import (
    Conversation, DeveloperContent, Message, Role, ToolDescription, load_harmony_encoding
)  # fmt: skip

# The vocabulary, which openai-harmony would download and whose checksum it verifies, is part of bpe-openai.
tokens = bpe_openai.get_encoding("o200k_base")
with open(sys.argv[1] + "/o200k_base.tiktoken", "w") as file:
    for rank in range(199998):
        file.write(f"{base64.b64encode(tokens.decode_single_token_bytes(rank)).decode()} {rank}\n")
encoding = load_harmony_encoding("HarmonyGptOss")

point = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
words = {"type": "string", "enum": ["x", "y"]}
whole, null, maybe = {"type": "integer"}, {"type": "null"}, {"type": ["integer", "null"]}
cases = {
    "an enumerated string": (words, '"x" | "y"', True),
    "a list of them": ({"type": "array", "items": words}, '("x" | "y")[]', '"x" | "y"[]'),
    "a number or null, by type": (maybe, "number | null", True),
    "a list of these": ({"type": "array", "items": maybe}, "(number | null)[]", "number | null[]"),
    "a number or null, by anyOf": ({"anyOf": [whole, null]}, "number | null", "any"),
    "a number or a word, by oneOf": ({"oneOf": [whole, {"type": "string"}]}, "| number | string", True),
    "an object": (point, "{ x: number, }", True),
    "the object by $ref": ({"$ref": "#/$defs/Point"}, "{ x: number, }", "any"),
    "a const": ({"const": "fixed"}, '"fixed"', "any"),
    "an enumerated number": ({"type": "integer", "enum": [1, 2]}, "1 | 2", "number"),
}


def rendered(schema):
    parameters = {"type": "object", "properties": {"it": schema}, "required": ["it"], "$defs": {"Point": point}}
    tool = ToolDescription.new("look", "Looks.", parameters)
    content = DeveloperContent.new().with_function_tools([tool])
    messages = [Message.from_role_and_content(Role.DEVELOPER, content)]
    text = encoding.decode(encoding.render_conversation(Conversation.from_messages(messages)))
    return text.partition("(_: {")[2].partition("}) => any")[0]


def shown(schema):
    return " ".join(rendered(schema).partition("it:")[2].split()).removesuffix(",").strip()


print("openai-harmony", metadata.version("openai-harmony"))
right = True
for name, (schema, guess, otherwise) in cases.items():
    found = shown(schema)
    right &= found == (guess if otherwise is True else otherwise)
    print(f"guess: {name}: {guess}")
    print(f"seen: {name}: {found}")
lines = rendered({"type": "string", "description": "One.\nTwo."}).split()
print("guess: a description of two lines: // One. // Two.")
print("seen: a description of two lines:", *lines[:-2])
sys.exit(not (right and lines[:-2] == ["//", "One.", "Two."]))
PY
