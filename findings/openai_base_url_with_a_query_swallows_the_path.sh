#!/usr/bin/env bash
# openai and anthropic: gateways are often given as an address with a query, such as /v1?api-version=2. base_url takes
# it, and the path of each call is appended to the query: the server is asked for /v1/, with the parameter
# "2chat/completions", and answers for another page, or with a value of the parameter that nobody set. No error names
# the address. default_query is the way to add a parameter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 anthropic==2.14.0
"$folder/venv/bin/python" - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import anthropic
import openai

asked = []


class Answer(BaseHTTPRequestHandler):
    """Notes the path of a POST, and answers with an empty JSON object."""

    def do_POST(self):
        asked.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({}).encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
at = f"http://127.0.0.1:{server.server_port}"
messages = [{"role": "user", "content": "Hello"}]
own = openai.DefaultHttpxClient(trust_env=False)
for more in ({"base_url": f"{at}/v1?api-version=2"}, {"base_url": f"{at}/v1", "default_query": {"api-version": "2"}}):
    client = openai.OpenAI(api_key="none", max_retries=0, http_client=own, **more)
    client.chat.completions.create(model="m", messages=messages)
own = anthropic.DefaultHttpxClient(trust_env=False)
client = anthropic.Anthropic(api_key="none", max_retries=0, http_client=own, base_url=f"{at}?api-version=2")
client.messages.create(model="m", max_tokens=9, messages=messages)
print("openai", openai.__version__, "anthropic", anthropic.__version__)
print("guess: /v1/chat/completions?api-version=2 and /v1/messages?api-version=2, or an error about the address")
for name, path in zip(("openai, base_url", "openai, default_query", "anthropic, base_url"), asked):
    print(f"{name}: {path}")
sys.exit(
    asked
    != ["/v1/?api-version=2chat/completions", "/v1/chat/completions?api-version=2", "/?api-version=2/v1/messages"]
)
PY
