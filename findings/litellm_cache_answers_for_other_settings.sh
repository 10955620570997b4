#!/usr/bin/env bash
# litellm: with litellm.cache on, an answer is kept by the model's name, the messages and the arguments that OpenAI has.
# What a local server such as vLLM or llama.cpp takes beside them is not part of the key: repetition_penalty, min_p,
# guided_json, chat_template_kwargs, all of extra_body, and api_base. A sweep over any of them gets the first answer for
# each value, two servers of one model name have one answer, and thinking stays on when it is switched off. Nothing says
# so; of temperature, seed and top_k the key knows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check litellm==1.110.2
"$folder/venv/bin/pip" install -q --disable-pip-version-check fastapi==0.165.0 orjson==3.13.0 soundfile==0.14.0
env -u OPENAI_BASE_URL -u OPENAI_API_BASE LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" -W ignore - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata

import litellm
from litellm.caching.caching import Cache

answered = []


class Server(BaseHTTPRequestHandler):
    """Answers with the number of the request."""

    def do_POST(self):
        answered.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        message = {"role": "assistant", "content": str(len(answered))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


servers = [ThreadingHTTPServer(("127.0.0.1", 0), Server) for _ in range(2)]
for server in servers:
    threading.Thread(target=server.serve_forever, daemon=True).start()
addresses = [f"http://127.0.0.1:{server.server_port}/v1" for server in servers]
litellm.suppress_debug_info = True
litellm.cache = Cache(type="local")
plain = {"model": "openai/m", "api_base": addresses[0], "api_key": "none"}
plain["messages"] = [{"role": "user", "content": "Hello"}]


def answer(**more):
    return litellm.completion(caching=True, **plain | more).choices[0].message.content


first = answer()
settings = {
    "temperature": 0.5, "seed": 3, "top_k": 5, "repetition_penalty": 1.4, "min_p": 0.3,
    "chat_template_kwargs": {"enable_thinking": False}, "guided_json": {"type": "object"},
    "extra_body": {"top_k": 5}, "api_base": addresses[1],
}  # fmt: skip
cached = [name for name, value in settings.items() if answer(**{name: value}) == first]
litellm.cache = None
fresh = [name for name, value in settings.items() if answer(**{name: value}) == first]
print("litellm", metadata.version("litellm"))
print("guess: another setting, or another server, is another request")
print("the first answer comes back for another", ", ".join(cached) or "none", "and without the cache for", len(fresh))
expected = ["repetition_penalty", "min_p", "chat_template_kwargs", "guided_json", "extra_body", "api_base"]
sys.exit(not (cached == expected and not fresh))
PY
