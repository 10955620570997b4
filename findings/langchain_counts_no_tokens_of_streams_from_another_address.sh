#!/usr/bin/env bash
# langchain-openai: the usage of a stream is asked for (stream_options.include_usage) if the client has the address of
# OpenAI alone. With any other base_url, such as that of vLLM or of a proxy, it is left out: the same code that counted
# tokens counts none, usage_metadata is None, and totals that are summed from it stay at zero. Nothing is said, although
# the server counts when it is asked. stream_usage=True asks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check langchain-openai==1.7.4
env -u OPENAI_BASE_URL -u OPENAI_API_BASE LANGSMITH_TRACING=false "$folder/venv/bin/python" - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

from langchain_openai import ChatOpenAI

asked = []
counts = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}


class Answer(BaseHTTPRequestHandler):
    """Streams one word, and the usage if it is asked for."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(bool((body.get("stream_options") or {}).get("include_usage")))
        chunk = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        delta = {"role": "assistant", "content": "Yes"}
        events = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}]
        events += [{**chunk, "choices": [], "usage": counts}] if asked[-1] else []
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
at = f"http://127.0.0.1:{server.server_port}/v1"


def total(**more):
    """The tokens that the chunks of a stream count."""
    model = ChatOpenAI(model="m", base_url=at, api_key="none", max_retries=0, **more)
    return sum(chunk.usage_metadata["total_tokens"] for chunk in model.stream("Hello") if chunk.usage_metadata)


plain, told = total(), total(stream_usage=True)
print("langchain-openai", metadata.version("langchain-openai"))
print("guess: 8 tokens in both")
print("seen:", plain, "by default, and", told, "with stream_usage; usage was asked for:", *asked)
sys.exit((plain, told, asked) != (0, 8, [False, True]))
PY
