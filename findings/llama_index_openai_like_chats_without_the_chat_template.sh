#!/usr/bin/env bash
# llama-index: OpenAILike is the class for servers with OpenAI's API. Its chat() does not ask the server for a chat: as
# long as is_chat_model is left at False, the messages become one text ("user: ...", "assistant: "), which is sent to
# /v1/completions. The server never applies the model's chat template, and a model of chats answers a text without its
# special tokens. The answer has the form of a chat, and nothing is said. logprobs=True gives none on this way.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check llama-index-llms-openai-like==0.8.1
"$folder/venv/bin/python" - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

asked = []


class Answer(BaseHTTPRequestHandler):
    """Notes the path and the body of a POST, and answers a chat or a completion."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append((self.path, body.get("messages") or body.get("prompt")))
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": "Yes"}} if "messages" in body else {"text": "Yes"}
        kind = "chat.completion" if "messages" in body else "text_completion"
        document = {"id": "a", "object": kind, "created": 1, "model": "m", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
at = f"http://127.0.0.1:{server.server_port}/v1"
messages = [ChatMessage(role="system", content="Be short."), ChatMessage(role="user", content="Hello")]
for more in ({}, {"is_chat_model": True}):
    answer = OpenAILike(model="m", api_base=at, api_key="none", max_retries=0, **more).chat(messages)
    assert answer.message.content == "Yes"
print("llama-index-llms-openai-like", metadata.version("llama-index-llms-openai-like"))
print("guess: chat() sends both messages to /v1/chat/completions")
for name, (path, sent) in zip(("by default", "with is_chat_model"), asked):
    print(f"{name}: {path}: {sent!r}")
right = asked[0][0] == "/v1/completions" and isinstance(asked[0][1], str) and "user: Hello" in asked[0][1]
sys.exit(not (right and asked[1][0] == "/v1/chat/completions"))
PY
