#!/usr/bin/env bash
# litellm: a list of more than four stop strings is cut to the first four, without a word, since OpenAI takes no more.
# It is cut for other servers too, such as vLLM and llama.cpp, which take any number: an answer runs on past the fifth,
# as happens with the five or more that code completion and few-shot prompts have. The client of OpenAI sends all of
# them. litellm.disable_stop_sequence_limit = True, before the first call, does too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check litellm==1.110.2 openai==3.3.0
env -u OPENAI_BASE_URL -u OPENAI_API_BASE LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" -W ignore - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

import litellm
from openai import OpenAI

litellm.suppress_debug_info = True
text = "x = 1\ny = 2\nprint(x)\n"
answered = []


class Server(BaseHTTPRequestHandler):
    """Completes a program, up to the first of the stop strings."""

    def do_POST(self):
        stops = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["stop"]
        answered.append(len(stops))
        end = min((text.find(stop) for stop in stops if stop in text), default=len(text))
        message = {"role": "assistant", "content": text[:end]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
at = f"http://127.0.0.1:{server.server_port}/v1"
request = {"messages": [{"role": "user", "content": "x = 1"}], "stop": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]}


def answer(model):
    return litellm.completion(model=model, api_base=at, api_key="none", **request).choices[0].message.content


plain = OpenAI(base_url=at, api_key="none").chat.completions.create(model="m", **request).choices[0].message.content
seen = {model: answer(model) for model in ("openai/m", "hosted_vllm/m")}
litellm.disable_stop_sequence_limit = True
told = answer("openai/m")
print("litellm", metadata.version("litellm"), "openai", metadata.version("openai"))
print("guess: the answer ends before print, the fifth stop string")
print("stop strings that the server got: from openai", answered[0], "from litellm", answered[1:3], "told", answered[3])
print("answers:", repr(plain), *(f"{model} {seen[model]!r}" for model in seen), repr(told))
short = text[: text.find("\nprint")]
sys.exit(not (plain == told == short and list(seen.values()) == [text, text]))
PY
