#!/usr/bin/env bash
# openai-harmony: render_conversation_for_training renders a chat as gpt-oss is to be trained on it. Of an example with
# one question, its thoughts and its answer the thoughts are left out: what is dropped of a prompt, because it belongs
# to earlier turns, is dropped of the turn that is to be learnt. A model that is tuned on such examples learns to answer
# without thinking. The same function keeps the thoughts of a second question, and those before a call of a tool.
# auto_drop_analysis=False keeps all.
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
from openai_harmony import Conversation, Message, RenderConversationConfig, Role, load_harmony_encoding

# The vocabulary, which openai-harmony would download and whose checksum it verifies, is part of bpe-openai.
tokens = bpe_openai.get_encoding("o200k_base")
with open(sys.argv[1] + "/o200k_base.tiktoken", "w") as file:
    for rank in range(199998):
        file.write(f"{base64.b64encode(tokens.decode_single_token_bytes(rank)).decode()} {rank}\n")
encoding = load_harmony_encoding("HarmonyGptOss")


def said(text, channel):
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def asked(text):
    return Message.from_role_and_content(Role.USER, text)


call = said("{}", "commentary").with_recipient("functions.look")
one = [asked("one"), said("THOUGHT 1", "analysis"), said("1", "final")]
two = [*one, asked("two"), said("THOUGHT 2", "analysis"), said("2", "final")]
chats = {"one question": one, "two questions": two, "one question and a call": [*one[:2], call]}
guesses = [["THOUGHT 1"], ["THOUGHT 2"], ["THOUGHT 1"]]


def thoughts(messages, config=None):
    ids = encoding.render_conversation_for_training(Conversation.from_messages(messages), config)
    return [thought for thought in ("THOUGHT 1", "THOUGHT 2") if thought in encoding.decode(ids)]


print("openai-harmony", metadata.version("openai-harmony"))
seen = []
for (name, messages), guess in zip(chats.items(), guesses, strict=True):
    seen.append(thoughts(messages))
    print(f"guess: {name}: has {guess}, which the last turn is to teach")
    print(f"seen: {name}: has {seen[-1]}")
kept = thoughts(one, RenderConversationConfig(auto_drop_analysis=False))
print(f"seen: one question, auto_drop_analysis=False: has {kept}")
sys.exit(seen != [[], ["THOUGHT 2"], ["THOUGHT 1"]] or kept != ["THOUGHT 1"])
PY
