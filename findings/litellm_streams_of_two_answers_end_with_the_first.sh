#!/usr/bin/env bash
# litellm: a stream of n=2 answers keeps the text of both apart, and forgets how they ended. The first finish_reason
# that arrives is passed on as that of choice 0, whichever choice it was; the others are dropped. stream_chunk_builder
# then says "stop" for each answer, also for one that was cut by max_tokens, and if the second ends first, its "length"
# is shown as the end of the first. Who counts or leaves out cut answers in samples for a vote counts wrong. It also
# builds a message without the log-probabilities that each chunk had. Without stream all of it is there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check litellm==1.110.2
env -u OPENAI_BASE_URL -u OPENAI_API_BASE LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" -W ignore - <<'PY'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

import litellm

litellm.suppress_debug_info = True
head = {"id": "a", "created": 1, "model": "m"}
logprobs = {"content": [{"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}]}
order = [0, 1]  # the choices in the order in which they end: the first that is named stops, the other is cut


class Server(BaseHTTPRequestHandler):
    """Answers with two choices: choice 0 stops by itself, choice 1 is cut."""

    def do_POST(self):
        ends = {0: "stop", 1: "length"}
        if json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("stream"):
            events = [(index, {"role": "assistant", "content": "a"}, None) for index in ends]
            events += [(index, {}, ends[index]) for index in order]
            chunks = [{"index": index, "delta": delta, "finish_reason": end, "logprobs": delta and logprobs or None}
                      for index, delta, end in events]  # fmt: skip
            bodies = [{**head, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
            body = "".join(f"data: {json.dumps(part)}\n\n" for part in bodies) + "data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            choices = [{"index": index, "message": {"role": "assistant", "content": "a"}, "finish_reason": end,
                        "logprobs": logprobs} for index, end in ends.items()]  # fmt: skip
            body, kind = json.dumps({**head, "object": "chat.completion", "choices": choices}), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
request = {"model": "openai/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "none"}
request |= {"messages": [{"role": "user", "content": "Hello"}], "n": 2, "logprobs": True}


def seen(answer):
    """The ends of both choices, and how many of them have log-probabilities."""
    return [choice.finish_reason for choice in answer.choices], sum(
        bool(getattr(choice, "logprobs", None)) for choice in answer.choices
    )


def streamed():
    return seen(litellm.stream_chunk_builder(list(litellm.completion(stream=True, **request))))


whole, first = seen(litellm.completion(**request)), streamed()
order.reverse()
second = streamed()
print("litellm", metadata.version("litellm"))
print("guess: the first answer stops, the second is cut, and both have log-probabilities, streamed or not")
print("not streamed:", *whole)
print("streamed:", *first, "; streamed, the second ends first:", *second)
sys.exit((whole, first, second) != ((["stop", "length"], 2), (["stop", "stop"], 0), (["length", "stop"], 0)))
PY
