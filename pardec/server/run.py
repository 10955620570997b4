"""Runs the application with uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from pardec.models.errors import SpecError

if TYPE_CHECKING:
    from types import FrameType

    from .app import Server

_AFTER = 5  # seconds for answers of what was given up


class Uvicorn(uvicorn.Server):
    """Gives up what is under way when the grace after the first signal is over."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the grace, the second ends it."""
        if not self.should_exit:
            threading.Thread(target=self._server.worker.stop, args=(self._server.limits.grace,), daemon=True).start()
        super().handle_exit(sig, frame)


def run(app: FastAPI, listening: socket.socket, *, log_level: str = "warning") -> None:
    """Serves until SIGINT or SIGTERM; requests under way then have the limits' grace to finish."""
    server: Server = app.state.server
    config = uvicorn.Config(
        app, log_level=log_level, timeout_graceful_shutdown=int(server.limits.grace) + _AFTER, server_header=False
    )
    asyncio.run(Uvicorn(config, server).serve([listening]))


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections on this address. Raises SpecError where it cannot be used."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise SpecError(f"cannot listen on {host}:{port}: {reason}", "--port 0 takes a free port") from error
    return listening
