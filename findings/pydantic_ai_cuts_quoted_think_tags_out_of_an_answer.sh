#!/usr/bin/env bash
# pydantic-ai: the thoughts of a model that writes <think>...</think> are taken out of its text. They are looked for at
# any place, also in the middle of a sentence or of quoted code, and one tag without its end is deleted too: an answer
# about such tags, or a program that parses them, is handed on without them. It is so for each model on a server of the
# kind of OpenAI, and also if the server sends the thoughts in a field of their own. The other way round, thoughts whose
# first tag stood in the prompt, as in the templates of QwQ and DeepSeek-R1, stay in the answer. No warning in either.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pydantic-ai-slim==2.38.0 openai==3.3.0
env -u OPENAI_BASE_URL "$folder/venv/bin/python" -W ignore - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

message = {}


class Server(BaseHTTPRequestHandler):
    """Answers with the message."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
        body = json.dumps({"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
provider = OpenAIProvider(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
agent = Agent(OpenAIChatModel("m", provider=provider))


def read(text, **more):
    """What an agent hands on of an answer."""
    message.clear()
    message.update(content=text, **more)
    return agent.run_sync("How does one strip thoughts?").output


code = 'text.split("<think>")[1].split("</think>")[0]'
texts = ["<think>Hm.</think>Yes.", f"Use {code}.", 'Each answer begins with "<think>".', "Hm.</think>Yes."]
seen = [read(text) for text in texts]
parsed = read(f"Use {code}.", reasoning_content="Hm.")
print("pydantic-ai", metadata.version("pydantic-ai-slim"), "openai", metadata.version("openai"))
print("guess: thoughts at the start of an answer are taken out, and nothing else")
for text, output in zip(texts, seen, strict=True):
    print(f"answer {text!r} is read as {output!r}")
print(f"and with the thoughts in a field of their own as {parsed!r}")
cut = 'Use text.split("")[0].'
sys.exit(not (seen == ["Yes.", cut, 'Each answer begins with "".', "Hm.</think>Yes."] and parsed == cut))
PY
