#!/usr/bin/env bash
# mistral-common: the result of a tool is text in the API, and Mistral's tokenizers up to version 3 read it as JSON
# where they can and write it anew. A version number "1.10" is shown to the model as 1.1, a price "0.50" as 0.5, "1e400"
# as Infinity, a long number rounded, and of repeated keys the last one is left. Text that is no JSON, "1.10.2" or
# "007", is kept. From version 7 results are kept as they are, and the arguments of calls are still rewritten.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import sys

import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer


def shown(tokenizer, result="x", arguments="{}"):
    """The prompt after a call of a tool, as text."""
    call = ToolCall(id="abcdefghi", function=FunctionCall(name="look", arguments=arguments))
    messages = [
        UserMessage(content="hi"), AssistantMessage(content=None, tool_calls=[call]),
        ToolMessage(tool_call_id="abcdefghi", name="look", content=result),
    ]  # fmt: skip
    text = tokenizer.encode_chat_completion(ChatCompletionRequest(messages=messages)).text
    return text.replace("\u2581", " ")


results = {
    "1.10": "1.1", "0.50": "0.5", "1e400": "Infinity", "12345678901234567890.5": "1.2345678901234567e+19",
    '{"a": 1, "a": 2}': '{"a": 2}', "1.10.2": '"1.10.2"', "007": '"007"',
}  # fmt: skip
third, seventh = MistralTokenizer.v3(is_tekken=True), MistralTokenizer.v7()
print("mistral-common", mistral_common.__version__)
print("guess: the model is shown what the tool returned")
right = True
for result, expected in results.items():
    old, new = shown(third, result), shown(seventh, result)
    seen = old.split('"content": ', 1)[1].split(', "call_id"')[0]
    right &= seen == expected and f"[TOOL_CONTENT] {result}[/TOOL_RESULTS]" in new
    print(f"{result}: version 3 shows {seen}; version 7 as it is: {result in new}")
arguments = shown(seventh, arguments='{"version": 1.10}').split('"arguments": ', 1)[1].split(', "id"')[0]
print('arguments {"version": 1.10}: version 7 shows', arguments)
sys.exit(not (right and arguments == '{"version": 1.1}'))
PY
