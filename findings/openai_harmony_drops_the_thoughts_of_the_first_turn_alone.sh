#!/usr/bin/env bash
# openai-harmony: the thoughts of earlier turns (channel "analysis") are left out of a prompt, as gpt-oss was trained.
# Only those of the first turn are: the thoughts before the first answer are dropped, and those of the second turn and
# all later ones stay in every prompt. As soon as a tool is called, the first turn's come back as well, since the last
# message of the assistant is no answer then: the prompt after the call does not begin with the one before it, and a
# cache of prefixes is lost in the middle of a turn. A test with two questions sees what one expects.
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
from openai_harmony import Author, Conversation, Message, Role, load_harmony_encoding

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


chat = []
for turn in range(1, 5):
    chat += [asked(f"question {turn}"), said(f"THOUGHT {turn}", "analysis"), said(f"answer {turn}", "final")]
call = said("{}", "commentary").with_recipient("functions.look")
result = Message.from_author_and_content(Author.new(Role.TOOL, "functions.look"), "2").with_channel("commentary")
chats = {
    "second question": chat[:4],
    "third question": chat[:7],
    "fourth question": chat[:10],
    "tool of the second question": [*chat[:5], call, result],
}
guesses = {name: [] for name in chats} | {"tool of the second question": ["THOUGHT 2"]}


def prompt(messages):
    return encoding.render_conversation_for_completion(Conversation.from_messages(messages), Role.ASSISTANT)


print("openai-harmony", metadata.version("openai-harmony"))
seen = {}
for name, messages in chats.items():
    text = encoding.decode(prompt(messages))
    seen[name] = [thought for thought in (f"THOUGHT {turn}" for turn in range(1, 5)) if thought in text]
    print(f"guess: the prompt after the {name} has {guesses[name]}")
    print(f"seen: it has {seen[name]}")
before, after = prompt(chats["second question"]), prompt(chats["tool of the second question"])
goes_on = after[: len(before)] == before
print("guess: the prompt after the tool begins with the one before it")
print("seen: it does:", goes_on)
expected = [[], ["THOUGHT 2"], ["THOUGHT 2", "THOUGHT 3"], ["THOUGHT 1", "THOUGHT 2"]]
sys.exit(goes_on or list(seen.values()) != expected)
PY
