#!/usr/bin/env bash
# mistral-common: the parts of a question are a list of texts and pictures, and a model reads them in that order. A
# picture that comes last, after texts alone, is put before them, the system prompt apart. With a second picture, or a
# word after the first, the order stays: "Before:", a picture, "after:", a picture is read as it was written, and "What
# does this show?" with one picture is not. Where the text speaks of what stands above or below, or a picture is added
# to a chat's prompt, the order is one that nobody asked for, and adding a part changes it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check mistral-common==1.13.1 opencv-python-headless==5.0.0.93 pillow==13.0.0
"$folder/venv/bin/python" - <<'PY'
import re
import sys

import mistral_common
from mistral_common.protocol.instruct.chunk import ImageChunk, TextChunk
from mistral_common.protocol.instruct.messages import UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from PIL import Image

tokenizer = MistralTokenizer.v3(is_tekken=True, is_mm=True)
cases = {
    "text picture": "picture text",
    "text text picture": "picture text text",
    "picture text": "picture text",
    "text picture text": "text picture text",
    "text picture picture": "text picture picture",
    "text picture text picture": "text picture text picture",
}


def order(parts):
    picture, text = ImageChunk(image=Image.new("RGB", (16, 16))), TextChunk(text="text")
    content = [picture if part == "picture" else text for part in parts.split()]
    request = ChatCompletionRequest(messages=[UserMessage(content=content)])
    prompt = tokenizer.encode_chat_completion(request).text.replace("[IMG_END]", "picture")
    return " ".join(re.findall("picture|text", prompt))


print("mistral-common", mistral_common.__version__)
print("guess: the parts are in the order in which they were given")
seen = {parts: order(parts) for parts in cases}
for given, found in seen.items():
    print(f"seen: {given}: {found}")
sys.exit(seen != cases)
PY
