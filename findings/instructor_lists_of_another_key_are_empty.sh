#!/usr/bin/env bash
# instructor: response_model=list[Person] asks the model for an object with one key, "tasks", and validates the answer;
# one that does not fit is sent back with the error. The key has an empty list for its default: any other object fits.
# {"people": [...]} and a single person give [], without an error, a retry or a warning, and so does a server that
# answers with one tool call for each person. An extraction that found nothing and one that found all look alike.
# Inside a model of one's own, with a list that has no default, each of these is an error that is tried again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check instructor==1.17.0 openai==3.3.0
env -u OPENAI_BASE_URL "$folder/venv/bin/python" -W ignore - <<'PY'
import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

import instructor
from instructor import Mode
from instructor.core import InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel

logging.disable(logging.ERROR)
message, asked = {}, []


class Server(BaseHTTPRequestHandler):
    """Answers with the message."""

    def do_POST(self):
        asked.append(self.rfile.read(int(self.headers["Content-Length"])))
        choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": "stop"}
        body = json.dumps({"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")


class Person(BaseModel):
    name: str


class People(BaseModel):
    people: list[Person]


def found(kind, mode, **answer):
    """How many persons are found in this answer, or "error", and how many requests it took."""
    message.clear()
    message.update(answer)
    asked.clear()
    try:
        create = instructor.from_openai(client, mode=mode).chat.completions.create
        people = create(model="m", messages=[{"role": "user", "content": "Who?"}], response_model=kind, max_retries=1)
        people = len(people.people if kind is People else list(people))
    except InstructorRetryException:
        people = "error"
    return people, len(asked)


ann, bob = {"name": "Ann"}, {"name": "Bob"}
calls = [{"id": person["name"], "type": "function", "function": {"name": "Person", "arguments": json.dumps(person)}}
         for person in (ann, bob)]  # fmt: skip
seen = {
    "tasks": found(list[Person], Mode.JSON, content=json.dumps({"tasks": [ann, bob]})),
    "persons": found(list[Person], Mode.JSON, content=json.dumps({"persons": [ann, bob]})),
    "one person": found(list[Person], Mode.JSON, content=json.dumps(ann)),
    "two tool calls": found(list[Person], Mode.TOOLS, tool_calls=calls),
    "a model with a list": found(People, Mode.JSON, content=json.dumps({"persons": [ann, bob]})),
}
print("instructor", metadata.version("instructor"), "openai", metadata.version("openai"))
print("guess: an answer without the list is an error, which is tried again")
for name, (people, requests) in seen.items():
    print(f"{name}: {people} after {requests} request(s)")
sys.exit(list(seen.values()) != [(2, 1), (0, 1), (0, 1), (0, 1), ("error", 2)])
PY
