#!/usr/bin/env bash
# openai: a server that fails in the middle of a stream can only say so in the stream. The client raises for a message
# with the key "error". An event that is named error, the form of event streams and of Anthropic's API, is passed on as
# an empty chunk where its document has no such key, and a stream that breaks off without [DONE] ends as a whole one
# does. In both cases a text that was cut in the middle looks complete; the absence of a finish_reason alone shows it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0
"$folder/venv/bin/python" - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import openai

body = []


class Answer(BaseHTTPRequestHandler):
    """Answers a POST with the events of `body`."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(body).encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
http = openai.DefaultHttpxClient(trust_env=False)
at = f"http://127.0.0.1:{server.server_port}"
client = openai.OpenAI(api_key="none", base_url=at, max_retries=0, http_client=http)


def event(document, name=None):
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(document)}\n\n"


def read(*ends):
    """The text that the client reads of a stream with one word and these ends, and its finish_reason."""
    body[:] = [event({"choices": [{"index": 0, "delta": {"content": "Yes,"}}]}), *ends]
    text, reason = "", None
    try:
        for chunk in client.chat.completions.create(model="m", messages=[], stream=True):
            for choice in chunk.choices or []:
                text, reason = text + (choice.delta.content or ""), choice.finish_reason or reason
    except openai.APIError as error:
        return f"error: {error.message}"
    return text, reason


overloaded = {"message": "overloaded", "type": "server_error"}
seen = {
    "a message with the key error": read(event({"error": overloaded})),
    "an event named error with it": read(event({"error": overloaded}, "error")),
    "an event named error without it": read(event(overloaded, "error")),
    "no more, and no [DONE]": read(),
}
print("openai", openai.__version__)
print("guess: each is an error")
for name, what in seen.items():
    print(f"{name}: {what}")
cut = ("Yes,", None)
sys.exit(list(seen.values()) != ["error: overloaded", "error: overloaded", cut, cut])
PY
