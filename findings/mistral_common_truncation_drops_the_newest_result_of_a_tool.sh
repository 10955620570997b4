#!/usr/bin/env bash
# mistral-common: truncate_for_context_length with a max_model_input_len drops the oldest turns until a chat fits. The
# last question is kept, and what comes after it is not: a call of a tool and its result, the newest message, are
# dropped with the oldest turn. The model is shown the question alone, with no sign that a tool was asked, and asks it
# again. The limit does not count the first token, so that a prompt may be one longer. Tokenizers up to version 3 take
# the same two arguments and cut nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import sys

import mistral_common
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

call = ToolCall(id="abcdefghi", function=FunctionCall(name="look", arguments="{}"))
messages = [
    SystemMessage(content="Be brief."), UserMessage(content="an old question " * 20), AssistantMessage(content="old"),
    UserMessage(content="What is new?"), AssistantMessage(content=None, tool_calls=[call]),
    ToolMessage(tool_call_id="abcdefghi", name="look", content="some news " * 40),
]  # fmt: skip


def cut(tokenizer, limit):
    request = ChatCompletionRequest(messages=messages, truncate_for_context_length=True)
    encoded = tokenizer.encode_chat_completion(request, max_model_input_len=limit)
    words = ("an old question", "What is new?", "[TOOL_CALLS]", "some news")
    text = encoded.text.replace("\u2581", " ")
    return len(encoded.tokens), [word for word in words if word in text]


seventh, third = MistralTokenizer.v7(), MistralTokenizer.v3()
whole = len(seventh.encode_chat_completion(ChatCompletionRequest(messages=messages)).tokens)
print("mistral-common", mistral_common.__version__)
print("guess: no more tokens than the limit; the old question goes first, and the newest message stays, or is an error")
kept = cut(seventh, whole - 5)
seen = {f"{limit} tokens": cut(seventh, limit) for limit in (whole, whole - 1, whole - 5, kept[0] - 2)}
for limit, (tokens, words) in seen.items():
    print(f"seen: limit {limit}: {tokens} tokens, with {words}")
old = cut(third, 20)
print(f"seen: version 3, limit 20: {old[0]} tokens")
counts, words = zip(*seen.values(), strict=True)
sys.exit(
    not (
        counts[0] == counts[1] == whole
        and words[2] == ["What is new?", "[TOOL_CALLS]", "some news"]
        and words[3] == ["What is new?"]
        and old[0] > 100
    )
)
PY
