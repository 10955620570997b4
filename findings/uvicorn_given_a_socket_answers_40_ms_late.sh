#!/usr/bin/env bash
# uvicorn: a server may open its own socket, to choose a free port or to fail early, and pass it on. A socket made as
# socket(AF_INET, SOCK_STREAM) then answers every request but the first of a connection 40 ms late on Linux: asyncio
# switches the delay of small packets off only where a socket names its protocol, and head and body of an answer are two
# packets, of which the second waits for the client's acknowledgement. socket(AF_INET, SOCK_STREAM, IPPROTO_TCP) is not
# late. Clients that keep connections, as all of OpenAI's do, see it on every request.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check uvicorn==0.54.0
"$folder/venv/bin/python" - <<'PY'
import http.client
import socket
import statistics
import sys
import threading
import time
from importlib import metadata

import uvicorn


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def milliseconds(*protocol):
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, *protocol)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    client, taken = http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1]), []
    for _ in range(20):
        started = time.perf_counter()
        client.request("GET", "/")
        client.getresponse().read()
        taken.append(1e3 * (time.perf_counter() - started))
    client.close()
    server.should_exit = True
    thread.join()
    return statistics.median(taken)


plain, named = milliseconds(), milliseconds(socket.IPPROTO_TCP)
print("uvicorn", metadata.version("uvicorn"), "Python", sys.version.split()[0])
print("guess: a request of an open connection takes a millisecond, whatever socket the server was given")
print(f"seen: {plain:.0f} ms with socket(AF_INET, SOCK_STREAM), {named:.0f} ms where it names IPPROTO_TCP, too")
sys.exit(not (plain > 30 > 15 > named))
PY
