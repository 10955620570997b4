"""Hostile and honest clients at once: no honest request waits long, and the process survives."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pardec.server.test_command import start

pytestmark = pytest.mark.slow

MORE = 2.0  # seconds that an honest request may wait longer
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
QUESTION = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


PAIR = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}
HONEST: dict[str, dict[str, Any]] = {
    "four tokens": {"prompt": QUESTION, "max_tokens": 4},
    "an answer": {"prompt": QUESTION, "max_tokens": 24},
    "a stream": {"prompt": QUESTION, "max_tokens": 8, "stream": True},
    "a schema": {"prompt": QUESTION, "max_tokens": 24, "response_format": form(PAIR)},
}


def honest(url: str, rounds: int) -> dict[str, float]:
    """The longest time of each kind of request."""
    longest = dict.fromkeys(HONEST, 0.0)
    with httpx.Client(base_url=url, timeout=120) as client:
        for at in range(rounds):
            for name, body in HONEST.items():
                since = time.monotonic()
                answer = client.post(COMPLETIONS, json={**body, "seed": at})
                longest[name] = max(longest[name], time.monotonic() - since)
                assert answer.status_code == 200, (name, answer.text)
    return longest


def bodies() -> list[tuple[str, bytes]]:
    """Request bodies that are costly to parse, or invalid."""
    nested: Any = [5]
    for _ in range(150):
        nested = [nested]
    chain = {f"d{at}": {"type": "array", "items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(600)}
    schemas: list[Any] = [
        {"type": "string", "pattern": "(a|b)*a(a|b){12}"},
        {"type": "string", "pattern": ".{1,200}"},
        {"type": "string", "pattern": "a.{1,60}b"},
        {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(900)}},
        {"type": "array", "minItems": 1100, "items": {"type": "integer"}},
        {"$ref": "#/$defs/d0", "$defs": {**chain, "d600": {"type": "null"}}},
        {"enum": ["\ud800"]},
    ]
    changes: list[dict[str, Any]] = [
        *({"response_format": form(schema)} for schema in schemas),
        {"allowed": nested},
        {"prompt": "Tom has 8 cups. " * 180_000},
        {"prompt": [5] * 400_000},
        {"stop": "\udc00"},
    ]
    messages = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 64}
    both = [(COMPLETIONS, {"prompt": "x", "max_tokens": 64, **change}) for change in changes]
    both += [(CHAT, {**messages, **change}) for change in changes]
    return [(path, json.dumps(body).encode()) for path, body in both] + [(COMPLETIONS, b"[" * 100_000)]


def send(url: str, over: threading.Event, statuses: list[int], seed: int) -> None:
    order, each = random.Random(seed), bodies()
    with httpx.Client(base_url=url, timeout=60) as client:
        while not over.wait(0.05):
            path, body = order.choice(each)
            with contextlib.suppress(httpx.HTTPError):
                statuses.append(client.post(path, content=body).status_code)


def many_rows(url: str, over: threading.Event, statuses: list[int], seed: int) -> None:
    body = {"prompt": QUESTION, "n": 64, "max_tokens": 400, "ignore_eos": True, "temperature": 1.0, "seed": seed}
    with httpx.Client(base_url=url, timeout=2) as client:
        while not over.is_set():
            with contextlib.suppress(httpx.HTTPError):  # it goes away, and comes back
                statuses.append(client.post(COMPLETIONS, json=body).status_code)


def half_sent(url: str, over: threading.Event, _: list[int], seed: int) -> None:
    """Headers and bodies that never end."""
    host, _, port = url.removeprefix("http://").partition(":")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    while not over.is_set():
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for at in range(20):
                each = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
                each.sendall(head if at % 2 else head + b'\r\n{"prompt": ')
            over.wait(3)


def leave(url: str, over: threading.Event, _: list[int], seed: int) -> None:
    """Streams whose clients disconnect after a moment."""
    order = random.Random(seed)
    body = {"prompt": QUESTION, "max_tokens": 400, "ignore_eos": True, "stream": True}
    while not over.is_set():
        with contextlib.suppress(httpx.HTTPError), httpx.stream("POST", url + COMPLETIONS, json=body, timeout=1):
            time.sleep(order.random() * 0.3)


HOSTILE: list[Callable[[str, threading.Event, list[int], int], None]] = (
    [send] * 4 + [many_rows] * 2 + [half_sent, leave]
)


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-dream"])
def test_load_of_hostile_and_honest_clients(tmp_path: Path, model: str) -> None:
    log = tmp_path / "log"
    process, url = start(log, "--batch-size", "8", "--receiving", "5", model=model)
    try:
        honest(url, 2)  # what is read once
        alone = honest(url, 5)
        over, statuses = threading.Event(), list[int]()
        threads = [
            threading.Thread(target=each, args=(url, over, statuses, at), daemon=True)
            for at, each in enumerate(HOSTILE)
        ]
        for thread in threads:
            thread.start()
        time.sleep(2)
        try:
            among = honest(url, 10)
        finally:
            over.set()
        for thread in threads:
            thread.join(70)
        print(model, {name: (round(alone[name], 2), round(among[name], 2)) for name in alone}, len(statuses))
        assert process.poll() is None
        assert "Traceback" not in log.read_text()
        assert all(200 <= status < 500 or status == 503 for status in statuses)
        late = {name: round(among[name] - alone[name], 2) for name in alone if among[name] > alone[name] + MORE}
        assert not late
        end = time.monotonic() + 30
        while (health := httpx.get(f"{url}/health").json())["live"] or health["waiting"]:
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait(10)
