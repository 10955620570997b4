"""A server that runs in a thread of the test."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from openai import OpenAI

from pardec.api import Model
from pardec.server.app import Server, create_app
from pardec.server.limits import Limits
from pardec.server.run import listen

PLAIN = ssl.SSLContext()  # of no use for http, but a client without one reads all certificates of the system


def client(**options: Any) -> httpx.Client:
    """A client of a server on this machine."""
    return httpx.Client(verify=PLAIN, **{"timeout": 60, **options})


class Running:
    """A running server and its clients."""

    def __init__(self, server: Server, port: int, uvicorn_server: uvicorn.Server) -> None:
        self.server, self.uvicorn = server, uvicorn_server
        self.url = f"http://127.0.0.1:{port}"

    def openai(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, http_client=client(timeout=600))

    def post(self, path: str, content: Any = None, **options: Any) -> httpx.Response:
        body = {"content": content} if isinstance(content, (bytes, str)) else {"json": content}
        with client() as own:
            return own.post(self.url + path, **body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        with client() as own:
            return own.get(self.url + path, **options)

    def wait_until_idle(self, seconds: float = 20) -> None:
        """Raises if a slot is not freed."""
        scheduler, end = self.server.worker.scheduler, time.monotonic() + seconds
        while self.server.worker.rows or not scheduler.idle or scheduler._batches:
            if time.monotonic() > end:
                raise AssertionError(f"{self.server.worker.rows} rows are not over, {scheduler.live} live")
            time.sleep(0.01)


@contextmanager
def serving(
    model: Model, *, limits: Limits | None = None, name: str | None = None, api_key: str | None = None, **defaults: Any
) -> Iterator[Running]:
    app = create_app(model, name=name, api_key=api_key, limits=limits, **defaults)
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=10)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Running(app.state.server, listening.getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
