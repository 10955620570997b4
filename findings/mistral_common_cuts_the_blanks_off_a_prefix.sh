#!/usr/bin/env bash
# mistral-common: an assistant message with prefix=True is the beginning of the answer, which the model goes on with.
# Its blanks at the end are cut off, from version 2 on: after "def f():" and an indented line the model stands at the
# line's beginning, and an answer that is put together from prefix and continuation has the indent twice or not at all.
# Blanks alone are cut: a tab or a line break stays. Nothing is said, and earlier answers of a chat are cut as well, so
# that the prompt is not what the model wrote. Version 1 keeps them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import sys

import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

tokenizers = {
    "1": MistralTokenizer.v1(), "2": MistralTokenizer.v2(), "3": MistralTokenizer.v3(),
    "3, tekken": MistralTokenizer.v3(is_tekken=True), "7": MistralTokenizer.v7(),
}  # fmt: skip
prefixes = ["def f():\n    ", "def f():\n\t", "def f():\n", "The answer is "]


def shown(tokenizer, prefix):
    messages = [UserMessage(content="Go."), AssistantMessage(content=prefix, prefix=True)]
    text = tokenizer.encode_chat_completion(ChatCompletionRequest(messages=messages)).text
    text = text.replace("\u2581", " ").replace("<0x0A>", "\n").replace("<0x09>", "\t")
    return text.rpartition("[/INST]")[2].removeprefix(" ")


print("mistral-common", mistral_common.__version__)
print("guess: the prompt ends in the prefix as it was given")
right = True
for version, tokenizer in tokenizers.items():
    seen = [shown(tokenizer, prefix) for prefix in prefixes]
    print(f"seen: version {version}: {seen}")
    right &= seen == (prefixes if version == "1" else [prefix.rstrip(" ") for prefix in prefixes])
sys.exit(not right)
PY
