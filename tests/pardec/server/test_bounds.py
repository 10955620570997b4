"""Limits on the cost of parsing a request, and how requests share a server."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import pardec
from pardec.api import Model
from pardec.models.errors import SpecError
from pardec.server.limits import Limits
from pardec.server.schemas import CompletionBody
from pardec.serving.running import TokenBatch
from tests.pardec.server.http_server import Running, serving

COMPLETIONS = "/v1/completions"
QUESTION = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def nested(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def chain(count: int) -> Any:
    links = {f"d{at}": {"type": "array", "items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": {"type": "null"}}}


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-dream"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(pardec.load(request.param, device="cpu"), limits=Limits(batch_size=8)) as running:
        yield running


OVER: dict[str, dict[str, Any]] = {
    "states of a pattern": {"response_format": form({"type": "string", "pattern": "(a|b)*a(a|b){12}"})},
    "length of a pattern": {"response_format": form({"type": "string", "pattern": "a" * 2049})},
    "groups of a pattern": {"response_format": form({"type": "string", "pattern": "(" * 33 + "a" + ")" * 33})},
    "parts of a schema": {"response_format": form({"enum": list(range(4097))})},
    "bytes of a schema": {"response_format": form({"enum": ["x" * 2**18]})},
    "items of an array": {"response_format": form({"type": "array", "minItems": 1001, "items": {"type": "null"}})},
    "a chain of definitions": {"response_format": form(chain(1200))},
    "levels of a schema": {"response_format": form(json.loads('{"anyOf":[' * 66 + '{"type":"null"}' + "]}" * 66))},
    "a reference to itself": {"response_format": form({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})},
    "a surrogate in an enum": {"response_format": form({"enum": ["\ud800"]})},
    "a surrogate in a name": {"response_format": form({"type": "object", "properties": {"\ud800": {"type": "null"}}})},
    "levels of allowed": {"allowed": nested(150, 5)},
    "more levels of allowed": {"allowed": nested(250, 5)},
    "characters of a prompt": {"prompt": "Tom has 8 cups. " * 100_000},
    "ids of a prompt": {"prompt": [5] * 200_000},
    "a stop string": {"stop": "x" * 1025},
}


@pytest.mark.parametrize("name", OVER)
@pytest.mark.covers(1)
def test_bounds_of_reading_are_a_400(running: Running, name: str) -> None:
    answer = running.post(COMPLETIONS, json.dumps({"prompt": QUESTION, "max_tokens": 32, **OVER[name]}))
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert running.post(COMPLETIONS, {"prompt": QUESTION, "max_tokens": 2}).status_code == 200


def test_everyday_patterns_are_taken(running: Running) -> None:
    for pattern in (".{1,200}", "^.{1,200}$", "[a-z]+", r"^\d{3}-\d{4}$"):
        body = {"prompt": QUESTION, "max_tokens": 32, "response_format": form({"type": "string", "pattern": pattern})}
        assert running.post(COMPLETIONS, body).status_code == 200, pattern


def test_bounds_of_python_are_the_same() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    for name in ("states of a pattern", "items of an array", "a chain of definitions", "a surrogate in an enum"):
        with pytest.raises(SpecError, match="response_format"):
            model.generate(QUESTION, max_new_tokens=32, **OVER[name])


@pytest.mark.skipif(sys.platform == "win32", reason="there are no parser processes")
def test_a_fault_in_a_parser_process_is_the_servers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was answered as a request that takes too long, and the log had nothing."""
    from pardec.server import parser_process

    def fails(*_: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(parser_process, "parse_request", fails)
    config: Any = None
    status, message, _, code = parser_process._answer(config, b"{}", CompletionBody)
    assert (status, code) == (500, "internal")
    assert "a fault" not in message
    assert "KeyError: 'a fault'" in capfd.readouterr().err


def test_time_of_reading_is_bounded() -> None:
    """A parser process that takes too long is ended, and the server continues."""
    with serving(pardec.load("tiny-llama", device="cpu"), limits=Limits(reading=0.6)) as running:
        body = {
            "prompt": QUESTION,
            "response_format": form({"type": "string", "pattern": "^(((a{1,50}){1,50}){1,50})$"}),
        }
        answer = running.post(COMPLETIONS, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_too_complex")
        assert running.get("/health").status_code == 200


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(running: Running) -> None:
    with httpx.Client(base_url=running.url, timeout=60) as client:
        assert client.get("/health").status_code == 200
        sockets = [held.transport.get_extra_info("socket") for held in running.uvicorn.server_state.connections]
        assert sockets
        assert all(held.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for held in sockets)


def test_bodies_that_do_not_end(model: Model) -> None:
    with serving(model, limits=Limits(receiving=0.5)) as running:
        host, _, port = running.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert b" 408 " in connection.recv(65536)


@pytest.fixture(scope="module")
def model() -> Model:
    return pardec.load("tiny-llama", device="cpu")


def test_stream_sends_headers_and_comments_while_it_waits(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, original = threading.Event(), TokenBatch.advance

    def advance(batch: TokenBatch) -> Any:
        gate.wait(20)
        return original(batch)

    monkeypatch.setattr(TokenBatch, "advance", advance)
    with serving(model) as running:
        body = {"prompt": QUESTION, "max_tokens": 4, "stream": True}
        with httpx.stream("POST", running.url + COMPLETIONS, json=body, timeout=30) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            assert next(lines).startswith(":")
            gate.set()
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_small_request_does_not_wait_for_large_ones(model: Model) -> None:
    with serving(model, limits=Limits(batch_size=8)) as running:
        large = {"prompt": QUESTION, "n": 64, "max_tokens": 300, "ignore_eos": True, "seed": 1, "temperature": 1.0}
        alone = model.generate(QUESTION, max_new_tokens=4, seed=0).text
        over: list[float] = []

        def ask() -> None:
            with httpx.Client(timeout=300) as client:
                client.post(running.url + COMPLETIONS, json=large)
            over.append(time.monotonic())

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        while running.server.worker.scheduler.live < 8:
            time.sleep(0.01)
        answer = running.post(COMPLETIONS, {"prompt": QUESTION, "max_tokens": 4, "seed": 0})
        assert [answer.json()["choices"][0]["text"]] == alone
        assert not over, "it is answered while the large ones are under way"
        running.server.worker.stop(0.0)
        for thread in threads:
            thread.join(30)


def test_rows_that_made_room_have_the_same_text(model: Model) -> None:
    with serving(model, limits=Limits(batch_size=2)) as running:
        body = {"prompt": QUESTION, "n": 4, "max_tokens": 40, "ignore_eos": True, "seed": 3, "temperature": 0.9}
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(running.post(COMPLETIONS, body).json()))
        thread.start()
        while running.server.worker.scheduler.live < 2:
            time.sleep(0.001)
        for at in range(3):
            running.post(COMPLETIONS, {"prompt": QUESTION, "max_tokens": 2, "seed": at})
        thread.join(60)
        alone = model.generate(
            QUESTION, max_new_tokens=40, num_return_sequences=4, seed=3, temperature=0.9, stop_ids=[]
        ).text
        assert [choice["text"] for choice in answers[0]["choices"]] == alone
