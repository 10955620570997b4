#!/usr/bin/env bash
# openai-harmony: a message may have a content type, such as json, as an answer with a structured output has.
# Rendered and parsed again, the type of a message without a recipient is its recipient: a final answer in JSON comes
# back as one that is addressed to "<|constrain|>json". A server that takes messages with a recipient for calls of tools
# looks for a tool of that name, and shows no answer. With a recipient both are read right, which is the case that calls
# of tools test, and nothing is raised, whether parsing is strict or not.
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
from openai_harmony import Conversation, Message, Role, load_harmony_encoding

# The vocabulary, which openai-harmony would download and whose checksum it verifies, is part of bpe-openai.
tokens = bpe_openai.get_encoding("o200k_base")
with open(sys.argv[1] + "/o200k_base.tiktoken", "w") as file:
    for rank in range(199998):
        file.write(f"{base64.b64encode(tokens.decode_single_token_bytes(rank)).decode()} {rank}\n")
encoding = load_harmony_encoding("HarmonyGptOss")


def read_back(channel, recipient, content_type):
    """The recipient and the content type of a message that was rendered and parsed."""
    message = Message.from_role_and_content(Role.ASSISTANT, "{}").with_channel(channel)
    message.recipient, message.content_type = recipient, content_type
    ids = encoding.render_conversation(Conversation.from_messages([message]))
    found = {
        (parsed.recipient, parsed.content_type)
        for strict in (True, False)
        for parsed in encoding.parse_messages_from_completion_tokens(ids, strict=strict)
    }
    return found.pop() if len(found) == 1 else found


print("openai-harmony", metadata.version("openai-harmony"))
print("guess: recipient and content type are read as they were written")
cases = {
    ("final", None, None): (None, None),
    ("commentary", "functions.look", None): ("functions.look", None),
    ("commentary", "functions.look", "<|constrain|>json"): ("functions.look", "<|constrain|>json"),
    ("final", None, "<|constrain|>json"): ("<|constrain|>json", None),
    ("final", None, "json"): ("json", None),
}
seen = {case: read_back(*case) for case in cases}
for (channel, recipient, content_type), found in seen.items():
    print(f"seen: {channel} with recipient {recipient} and type {content_type} is read as {found}")
sys.exit(seen != cases)
PY
