"""Faulty requests are answered with a JSON error, and nothing of them remains in the server."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import pardec
from pardec.api import Model
from pardec.server.limits import Limits
from pardec.server.run import Uvicorn
from pardec.serving.running import TokenBatch
from tests.pardec.server.http_server import Running, serving

QUESTION = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
COMPLETIONS, CHAT, IMAGES = "/v1/completions", "/v1/chat/completions", "/v1/images/generations"


@pytest.fixture(scope="module")
def model() -> Model:
    return pardec.load("tiny-llama", device="cpu")


@pytest.fixture(scope="module")
def running(model: Model) -> Iterator[Running]:
    with serving(model, limits=Limits(batch_size=4, queue=64, rows=8, body=64 * 1024)) as running:
        yield running


NO_JSON = [
    b"", b"{", b"}", b"null", b"[]", b"3", b'"text"', b"true", b"{'prompt': 'x'}", b'{"prompt": "x",}',
    b'{"prompt": "x"} more', b'{"prompt": NaN}', b'{"prompt": Infinity}', b"\xff\xfe", b'{"prompt": "\xff"}',
    b"prompt=x&max_tokens=3", b"[" * 5000, b'{"prompt":' * 3000, b"\x00", "é".encode("utf-16"),
]  # fmt: skip
GOOD: dict[str, Any] = {"prompt": QUESTION, "max_tokens": 4}
CHANGES: list[dict[str, Any]] = [
    *({"prompt": value} for value in (None, 3, True, "", "   ", [], {}, [[]], ["a", 3], [1.5], [-1], [10**9])),
    *({"prompt": value} for value in ("\ud800", ["ok", ""], [None], {"text": "x"}, [["x"]], "a " * 600, [5] * 600)),
    {"prompt": [[5], []]},
    *({"max_tokens": value} for value in (-1, 1.5, "4", True, 10**9, 10**30, [], {})),
    *({"max_tokens": 0, **more} for more in ({"stream": True}, {"min_tokens": 2}, {"top_p": 2}, {"prompt": ""})),
    {"max_tokens": 0, "echo": True, "prompt": [5] * 600},
    {"max_tokens": 0, "echo": True, "logprobs": 1, "logprob_ids": [361]},
    *({"max_tokens": 0, **more} for more in ({"sampler": "no-such"}, {"logit_bias": {"a": 1}}, {"stop": [""]})),
    *({"max_tokens": 0, **more} for more in ({"stop_token_ids": [361]}, {"block_length": 2}, {"cfg": 2.0})),
    *({"stream_options": {name: True}} for name in ("include_usage", "include_denoise")),
    *({"temperature": value} for value in (-1, "0", True, [], 1e308, 1e-320)),
    *({"top_p": value} for value in (0, -0.1, 1.1, "x", True)),
    *({"top_k": value} for value in (-2, 1.5, "x", True)),
    *({"min_p": value} for value in (-1, 2, "x")),
    *({"n": value} for value in (0, -1, 9, 1.5, "2", True, 10**20)),
    *({"seed": value} for value in (1.5, "x", 2**64, -(2**63) - 1, True, [1])),
    *({"stop": value} for value in (3, [3], {}, [""], [["x"]], ["x"] * 17, True)),
    *({"logprobs": value} for value in (-1, 21, 1.5, "1", True)),
    *({"stream": value} for value in ("yes", 1, [])),
    *({"stream_options": value} for value in ("x", [], {"include_usage": "x"}, {"unknown": True})),
    *({"sampler": value} for value in ("", "no-such", "lookup:k=x", "lookup:no=1", "threshold:tau=0.9", 3, [])),
    *({"sampler": f"model:name={name}"} for name in ("/etc/passwd", "org/repo", "..", "models", "~", "C:\\x")),
    {"sampler": "a" * 5000},
    *({"model": value} for value in ("gpt-4", "", 3, [])),
    *({name: 1} for name in ("suffix", "unknown", "top_a", "messages")),
    *({name: value} for name in ("presence_penalty", "frequency_penalty") for value in (2.1, "1", True)),
    *({"logit_bias": value} for value in ({"5": 101}, {"a": 1}, {"-1": 1}, {"999999": 1}, {"5": "1"}, [1])),
    *({name: []} for name in ("input", "instructions")),
    {"best_of": 3},
    {"echo": "x"},
    {"echo": True, "stream": True},
    {"allowed": 3},
    {"allowed": {"x": ["4"]}},
    {"allowed": {"0": []}},
    {"allowed": [["no such token"]]},
    {"template": "x"},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": [10**6]},
    {"logprob_ids": [10**6]},
    {"logprob_ids": []},
    {"block_length": 0},
    {"min_tokens": 40},
    {"repetition_penalty": 0},
    {"cfg": 2.0, "max_tokens": 2, "prompt": 5},
    {"temperature": 0, "n": 2},
]


def is_error(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text


def test_bodies_that_are_no_request(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    count = 0
    with httpx.Client(base_url=running.url, timeout=60) as client:
        for body in NO_JSON:
            for path in (COMPLETIONS, CHAT):
                is_error(client.post(path, content=body))
                count += 1
        for change in CHANGES:
            text = json.dumps({**GOOD, **change})
            is_error(client.post(COMPLETIONS, content=text.encode()))
            count += 1
        chats: list[Any] = [
            *(
                None,
                3,
                "x",
                {},
                [],
                [3],
                ["x"],
                [{}],
                [{"role": "user"}],
                [{"content": "x"}],
                [{"role": 3, "content": "x"}],
                [{"role": "systm", "content": "x"}],
            ),
            [{"role": "user", "content": None}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            [{"role": "user", "content": "x", "tool_calls": [1]}],
        ]
        for messages in chats:
            is_error(client.post(CHAT, json={"messages": messages}))
            count += 1
        is_error(client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}))
        is_error(client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}))
        packed = gzip.compress(json.dumps(GOOD).encode())
        answer = client.post(COMPLETIONS, content=packed, headers={"Content-Encoding": "gzip"})
        is_error(answer)
        assert "Content-Encoding: gzip" in answer.text
        is_error(client.post(IMAGES, json={"prompt": "a circle"}))
        for path in ("/v1", "/v1/nothing", "/v1/models/none", "/v1/completions/"):
            is_error(client.get(path))
        for method, path in (("GET", COMPLETIONS), ("PUT", CHAT), ("POST", "/health"), ("DELETE", "/v1/models")):
            is_error(client.request(method, path))
    assert count > 150
    running.wait_until_idle()
    assert not caplog.records


def test_a_body_that_is_too_large(running: Running) -> None:
    large = json.dumps({"prompt": "x" * 70_000})
    for answer in (running.post(COMPLETIONS, large), running.post(COMPLETIONS, chunks(large.encode()))):
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"


def chunks(data: bytes) -> Any:
    return b"".join(data[at : at + 1000] for at in range(0, len(data), 1000))


def test_a_body_of_unknown_length_is_bounded_too(running: Running) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    try:
        answer = httpx.post(running.url + COMPLETIONS, content=stream(), timeout=60)
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # the server closed the connection before the rest was sent
    running.wait_until_idle()


def test_too_many_rows_and_too_long_rows(model: Model) -> None:
    with serving(model, limits=Limits(rows=4, length=40)) as running:
        assert running.post(COMPLETIONS, {**GOOD, "prompt": [QUESTION] * 5}).json()["error"]["code"] == "too_many_rows"
        answer = running.post(COMPLETIONS, {**GOOD, "max_tokens": 30})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert running.post(COMPLETIONS, GOOD).status_code == 200


def test_the_key(model: Model) -> None:
    with serving(model, api_key="secret") as running:
        assert running.get("/health").status_code == 200
        for headers in (
            {},
            {"Authorization": "secret"},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer é"},
        ):
            answer = running.post(COMPLETIONS, GOOD, headers={k: v.encode() for k, v in headers.items()})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert running.get("/metrics").status_code == 401
        assert running.get("/metrics", headers={"Authorization": "bearer secret"}).status_code == 200
        assert running.openai("secret").completions.create(model="tiny-llama", **GOOD).choices


class Gate:
    """Holds the worker between two forwards, so that a test decides when it goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.forwards, self.rows = threading.Event(), 0, [0]
        original = TokenBatch.advance

        def advance(batch: TokenBatch) -> Any:
            self.open.wait(20)
            self.forwards += 1
            self.rows.append(len(batch.live))
            return original(batch)

        monkeypatch.setattr(TokenBatch, "advance", advance)


def test_a_full_queue_is_503(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with serving(model, limits=Limits(batch_size=1, queue=1)) as running:
        threads = [threading.Thread(target=running.post, args=(COMPLETIONS, GOOD)) for _ in range(2)]
        for thread in threads:
            thread.start()
        while running.server.worker.rows < 2:
            time.sleep(0.01)
        answer = running.post(COMPLETIONS, GOOD)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
        assert answer.headers["retry-after"]
        gate.open.set()
        for thread in threads:
            thread.join()
        assert running.post(COMPLETIONS, GOOD).status_code == 200


def test_the_time_limit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with serving(model, limits=Limits(seconds=0.3)) as running:
        answer = running.post(COMPLETIONS, GOOD)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "timeout")
        stream = running.post(COMPLETIONS, {**GOOD, "stream": True})
        assert '"code":"timeout"' in stream.text
        gate.open.set()
        running.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_slot_before_the_next_forward(
    model: Model, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    gate = Gate(monkeypatch)
    body = {**GOOD, "max_tokens": 200, "ignore_eos": True, "stream": stream}
    with serving(model) as running:
        stay = threading.Thread(target=running.post, args=(COMPLETIONS, {**body, "max_tokens": 5, "stream": False}))
        stay.start()

        async def leave() -> None:
            async with httpx.AsyncClient(timeout=60) as client:
                task = asyncio.create_task(client.post(running.url + COMPLETIONS, json=body))
                while running.server.worker.rows < 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                task.cancel()
            while running.server.worker.rows > 1:
                await asyncio.sleep(0.01)

        asyncio.run(leave())
        gate.open.set()
        stay.join()
        running.wait_until_idle()
        both = [rows for rows in gate.rows if rows == 2]
        assert len(both) <= 1, "only the forward that was held may have had both"
        assert "pardec_disconnects_total 1.0" in running.get("/metrics").text


def test_a_fault_of_the_model_is_a_500_without_a_traceback(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: TokenBatch) -> Any:
        raise RuntimeError("secret inside")

    with serving(model) as running:
        with monkeypatch.context() as patch:
            patch.setattr(TokenBatch, "advance", fail)
            answer = running.post(COMPLETIONS, GOOD)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
            assert "secret" not in answer.text
            assert "internal" in running.post(COMPLETIONS, {**GOOD, "stream": True}).text
        running.wait_until_idle()
        assert running.post(COMPLETIONS, GOOD).status_code == 200


def test_stopping_lets_requests_finish_and_gives_up_what_takes_longer(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[httpx.Response] = []
    with serving(model, limits=Limits(grace=5)) as running:
        thread = threading.Thread(target=lambda: answers.append(running.post(COMPLETIONS, {**GOOD, "max_tokens": 60})))
        thread.start()
        while not running.server.worker.rows:
            time.sleep(0.001)
        running.uvicorn.should_exit = True
        thread.join(20)
    assert answers[0].status_code == 200
    gate = Gate(monkeypatch)
    with serving(model, limits=Limits(grace=0.2)) as running:
        thread = threading.Thread(target=lambda: answers.append(running.post(COMPLETIONS, GOOD)))
        thread.start()
        while not running.server.worker.rows:
            time.sleep(0.001)
        stop = threading.Thread(target=running.server.worker.stop, args=(0.2,))
        stop.start()
        time.sleep(0.5)
        gate.open.set()  # a forward is never interrupted
        stop.join(10)
        thread.join(10)
        assert running.get("/health").status_code == 503
        assert running.post(COMPLETIONS, GOOD).json()["error"]["code"] == "stopping"
    assert answers[1].status_code in (200, 503)


def test_a_second_signal_gives_up_what_runs(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[httpx.Response] = []
    gate = Gate(monkeypatch)
    with serving(model, limits=Limits(grace=30)) as running:
        signals = Uvicorn(running.uvicorn.config, running.server)
        body = {**GOOD, "max_tokens": 60}
        thread = threading.Thread(target=lambda: answers.append(running.post(COMPLETIONS, body)))
        thread.start()
        while not running.server.worker.rows:
            time.sleep(0.001)
        for _ in range(2):
            signals.handle_exit(signal.SIGINT, None)
            assert (signals.should_exit, signals.force_exit) == (True, False)
            time.sleep(0.3)
        gate.open.set()
        thread.join(10)
        signals.handle_exit(signal.SIGINT, None)
        assert signals.force_exit
    assert answers[0].status_code == 503
    assert "finishing the requests that are running, for at most 30 s" in caplog.text


def test_requests_that_come_and_go_leave_nothing(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    """The load of benchmarks/serve.py with fewer requests."""
    caplog.set_level(logging.ERROR)
    order = random.Random(2)

    async def one(client: httpx.AsyncClient, url: str, at: int) -> int:
        body = {**GOOD, "max_tokens": order.choice([1, 5, 30]), "seed": at, "stream": at % 2 == 0, "ignore_eos": True}
        path = COMPLETIONS
        if at % 5 == 0:
            body |= order.choice(CHANGES)
        content = json.dumps(body).encode()
        if at % 17 == 0:
            content = b"x" * 70_000
        task = asyncio.create_task(client.post(url + path, content=content))
        if at % 3 == 0:
            await asyncio.sleep(order.random() * 0.2)
            task.cancel()
        try:
            return (await task).status_code
        except (asyncio.CancelledError, httpx.HTTPError):
            return 0

    async def all_of_them(url: str) -> list[int]:
        gate = asyncio.Semaphore(20)
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=20)) as client:

            async def bounded(at: int) -> int:
                async with gate:
                    return await one(client, url, at)

            return list(await asyncio.gather(*(bounded(at) for at in range(120))))

    with serving(model, limits=Limits(batch_size=4, queue=64, rows=8, body=64 * 1024)) as running:
        statuses = asyncio.run(all_of_them(running.url))
        running.wait_until_idle()
        scheduler = running.server.worker.scheduler
        assert not scheduler._jobs
        assert not scheduler._batches
        assert 500 not in statuses
        assert statuses.count(200) > 36
        gc.collect()
        assert sum(isinstance(each, TokenBatch) for each in gc.get_objects()) == 0
    assert not caplog.records
