#!/usr/bin/env bash
# requests: an event stream is UTF-8 by its standard, and names no charset. requests takes text of any kind without a
# charset for Latin-1: iter_lines(decode_unicode=True) over the tokens of a server, and .text, give "Ã©" for "é",
# without an error. JSON from the same server is read as UTF-8, so that an answer is right until it is streamed, and
# English never shows it. httpx reads both as UTF-8.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check httpx==0.28.1 requests==2.34.2
"$folder/venv/bin/python" - <<'PY'
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import requests


class Answer(BaseHTTPRequestHandler):
    """Answers GET /events and /json with é in UTF-8."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if self.path == "/events" else "application/json")
        self.end_headers()
        self.wfile.write("data: é\n\n".encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
at = f"http://127.0.0.1:{server.server_port}"
alone = requests.Session()
alone.trust_env = False
seen = {
    "requests, events, iter_lines": next(alone.get(f"{at}/events", stream=True).iter_lines(decode_unicode=True)),
    "requests, events, text": alone.get(f"{at}/events").text.strip(),
    "requests, JSON, text": alone.get(f"{at}/json").text.strip(),
    "httpx, events, text": httpx.get(f"{at}/events", trust_env=False).text.strip(),
}
print("requests", requests.__version__, "httpx", httpx.__version__)
print("guess: 'data: é' each time")
for name, text in seen.items():
    print(f"{name}: {text!r}")
sys.exit(list(seen.values()) != ["data: Ã©", "data: Ã©", "data: é", "data: é"])
PY
