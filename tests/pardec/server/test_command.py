"""`pardec serve` started as a user starts it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest


def start(log: Path, *arguments: str, model: str = "tiny-llama") -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, "-m", "pardec", "serve", model, "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT)
    end = time.monotonic() + 120
    while not (found := re.search(r"(http://127[^/\s]+)/v1", log.read_text())):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(log.read_text())
        time.sleep(0.1)
    return process, found[1]


def ask(url: str, **fields: Any) -> httpx.Response:
    """Posts a request, after waiting until the server listens."""
    with httpx.Client(transport=httpx.HTTPTransport(retries=5), timeout=120) as client:
        return client.post(f"{url}/v1/completions", json={"prompt": "Tom has 8 cups.", **fields})


def test_it_serves_until_it_is_told_to_stop_and_keeps_idle_connections(tmp_path: Path) -> None:
    """httpx closes an idle connection after 5 seconds: a server that does so too can close one that is just used."""
    log = tmp_path / "log"
    options = ("-n", "5", "-s", "lookup", "--name", "llama", "--prefix-cache", "8", "--grace", "10", "--receiving", "2")
    process, url = start(log, *options)
    try:
        host, _, port = url.removeprefix("http://").partition(":")
        idle = http.client.HTTPConnection(host, int(port), timeout=60)
        idle.request("GET", "/health")
        assert idle.getresponse().read()
        used, since = idle.sock, time.monotonic()
        first, second = (ask(url, prompt="Tom has 8 cups. " * 4, ignore_eos=True) for _ in range(2))
        assert first.json()["usage"]["completion_tokens"] == 5
        assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert first.json()["choices"][0]["text"] == second.json()["choices"][0]["text"]
        assert [card["id"] for card in httpx.get(f"{url}/v1/models").json()["data"]] == ["llama", "tiny-llama"]
        with socket.create_connection((host, int(port)), timeout=20) as connection:  # headers that do not end
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
            assert connection.recv(65536) == b""
        time.sleep(max(0.0, since + 5.5 - time.monotonic()))
        idle.request("GET", "/health")
        assert idle.getresponse().read()
        assert idle.sock is used
        answers: list[httpx.Response] = []
        late = threading.Thread(target=lambda: answers.append(ask(url, max_tokens=300, ignore_eos=True, n=1)))
        late.start()
        while late.is_alive() and httpx.get(f"{url}/health").json()["live"] == 0:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        late.join(60)
        assert answers[0].status_code == 200
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny-llama", "--port", "0", "-s", "no-such"), "unknown sampler"),
        (("tiny-llama", "--port", "0", "-s", "threshold"), "is for masked models"),
        (("tiny-dream", "--port", "0", "--prefix-cache", "8"), "bidirectional"),
        (("tiny-lama", "--port", "0"), "tiny-llama"),
        (("tiny-llama", "--port", "0", "--api-key", ""), "--api-key is empty"),
        (("tiny-llama", "--host", "no.such.host.invalid", "--port", "0"), "cannot listen"),
        (("tiny-llama", "--host", "no.such.host.invalid"), "--host 127.0.0.1 serves this machine"),
    ],
)
@pytest.mark.timeout(120)  # it listens where it should not
def test_what_cannot_be_served_is_refused_before_it_listens(
    arguments: tuple[str, ...], message: str, cli: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, err = cli("serve", *arguments)
    assert code != 0
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("variable", ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"])
@pytest.mark.parametrize("given", [None, "7"])
@pytest.mark.covers(1)
def test_it_bounds_the_kernels_that_onednn_keeps(
    variable: str, given: str | None, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    found = list[str | None]()
    monkeypatch.setenv(variable, given or "")  # restored after the test
    if given is None:
        monkeypatch.delenv(variable)
    monkeypatch.setattr("pardec.server.run.run", lambda *_: found.append(os.environ.get(variable)))
    code, _, err = cli("serve", "tiny-llama", "--port", "0")
    assert code == 0, err
    assert found == [given or "64"]
