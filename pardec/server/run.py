"""Runs the HTTP server with uvicorn until a signal stops it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from pardec.models.errors import SpecError

if TYPE_CHECKING:
    from types import FrameType

    from .app import Server

log = logging.getLogger("pardec.server")
_AFTER = 5  # seconds to answer the requests that were given up
# Seconds for which a connection without a request stays open. Clients close theirs earlier (httpx and the clients of
# OpenAI and Anthropic after 5): one that the server closes just when a request is sent ends in a read error.
_IDLE = 75


class Uvicorn(uvicorn.Server):
    """A uvicorn server that gives up active requests when the grace after the first signal is over."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets running requests finish, for the time of `Limits.grace`, and the second gives them up.

        Their clients get an error then; a third SIGINT closes their connections at once.
        """
        self._signals += 1
        if self._signals <= 2:
            grace = self._server.limits.grace if self._signals == 1 else 0.0
            threading.Thread(target=self._stop, args=(grace,), daemon=True).start()
        if self._signals != 2:
            super().handle_exit(sig, frame)

    def _stop(self, grace: float) -> None:
        worker = self._server.worker
        if grace and worker.rows:
            log.warning("finishing the requests that are running, for at most %g s; Ctrl-C again ends them", grace)
        worker.stop(grace)


def bounded_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol that closes a connection whose headers do not arrive within `seconds`."""

    class Bounded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _arriving: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            cycle = self.cycle
            if cycle is None or cycle.response_complete:
                self._wait()
            else:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self._arriving is None:
                self._arriving = asyncio.get_running_loop().call_later(seconds, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._arriving is not None:
                self._arriving.cancel()
                self._arriving = None

    return Bounded


def run(app: FastAPI, listening: socket.socket, *, log_level: str = "warning") -> None:
    """Serves until SIGINT or SIGTERM; active requests then have the limits' grace period to finish."""
    server: Server = app.state.server
    config = uvicorn.Config(
        app,
        http=bounded_protocol(server.limits.receiving),
        log_level=log_level,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=int(server.limits.grace) + _AFTER,
        server_header=False,
    )
    asyncio.run(Uvicorn(config, server).serve([listening]))


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections on this address. Raises SpecError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends answers without waiting for the client's acknowledgement only where a socket names its protocol.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        other = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL  # no address of this machine
        hint = (
            "--host 127.0.0.1 serves this machine, --host 0.0.0.0 others too" if other else "--port 0 takes a free port"
        )
        raise SpecError(f"cannot listen on {host}:{port}: {reason}", hint) from error
    return listening
