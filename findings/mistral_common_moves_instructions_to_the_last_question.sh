#!/usr/bin/env bash
# mistral-common: a system prompt and the tools stand at the beginning of a chat in the API, and one expects them at the
# beginning of the prompt. With Mistral's tokenizers of versions 2 and 3 both are put beside the last question, and
# leave the one before it: each turn's prompt is another text from its second token on, and a server's cache of
# prefixes, which is there for long instructions, finds nothing of them. From version 7 the system prompt stays at the
# beginning and the tools still move; in version 1, which has no tools, it stays too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import sys

import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, Tool
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

tools = [Tool(function=Function(name="look", description="Looks things up.", parameters={}))]
chat = [
    SystemMessage(content="Be brief, and say no more than is asked."),
    UserMessage(content="one"), AssistantMessage(content="1"), UserMessage(content="two"),
]  # fmt: skip
tokenizers = {
    "1": MistralTokenizer.v1(), "2": MistralTokenizer.v2(), "3": MistralTokenizer.v3(),
    "3, tekken": MistralTokenizer.v3(is_tekken=True), "7": MistralTokenizer.v7(),
}  # fmt: skip


def shared(tokenizer, tools):
    """How many tokens the first prompt has, and how many of these the second one begins with."""
    first, second = (
        tokenizer.encode_chat_completion(ChatCompletionRequest(messages=chat[:length], tools=tools)).tokens
        for length in (2, 4)
    )
    same = [a == b for a, b in zip(first, second, strict=False)]
    return len(first), (*same, False).index(False)


print("mistral-common", mistral_common.__version__)
print("guess: the prompt of the second turn begins with that of the first")
plain = {version: shared(tokenizer, None) for version, tokenizer in tokenizers.items()}
tooled = {version: shared(tokenizer, tools) for version, tokenizer in tokenizers.items() if version != "1"}
for kind, seen in (("system prompt alone", plain), ("with a tool", tooled)):
    for version, (length, same) in seen.items():
        print(f"seen: version {version}, {kind}: {same} of the {length} tokens of the first prompt begin the second")
keeps = [version for version, (length, same) in plain.items() if length == same]
between = tooled["7"][1]
sys.exit(
    not (
        keeps == ["1", "7"]
        and all(plain[version][1] <= 2 and tooled[version][1] <= 2 for version in ("2", "3", "3, tekken"))
        and 2 < between < tooled["7"][0] / 2
    )
)
PY
