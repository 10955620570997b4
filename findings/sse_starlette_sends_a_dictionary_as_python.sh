#!/usr/bin/env bash
# sse-starlette: an event's data may be given as a dictionary, as JSONResponse and FastAPI take one, and is not written
# as JSON: it is Python's own notation, with single quotes, True and None. A browser's JSON.parse fails at each event; a
# test that has only numbers and looks for a substring passes. Nothing is said. JSONServerSentEvent of the same package
# writes JSON.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check sse-starlette==3.7.0
"$folder/venv/bin/python" - <<'PY'
import asyncio
import json
import sys
from importlib import metadata

from sse_starlette import EventSourceResponse, JSONServerSentEvent

chunk = {"text": "a", "done": True, "usage": None}


def sent(event):
    messages = []

    async def events():
        yield event

    async def send(message):
        messages.append(message)

    async def receive():
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(EventSourceResponse(events())(scope, receive, send))
    return messages[1]["body"].decode().strip()


print("sse-starlette", metadata.version("sse-starlette"))
print("guess: data:", json.dumps(chunk))
plain, typed = sent({"data": chunk}), sent(JSONServerSentEvent(data=chunk))
print("seen:", plain)
print("seen: by JSONServerSentEvent:", typed)
sys.exit(plain != f"data: {chunk}" or json.loads(typed.removeprefix("data: ")) != chunk)
PY
