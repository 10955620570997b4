"""Parses requests in separate processes, so that none can stop or delay the server."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .body_parser import WALL, ParsedBody, parse_request
from .errors import RequestError

if TYPE_CHECKING:
    from .body_parser import ParserConfig
    from .schemas import Body

AT_ONCE = 16  # processes
_START = 60.0  # seconds until the process that forks is there

POSSIBLE = hasattr(os, "fork") and hasattr(socket, "send_fds")


class _Parent:
    """The process that forks parsers; all servers of this process share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._configs: dict[int, bytes] = {}
        self._keys = itertools.count()

    def add(self, config: ParserConfig) -> int:
        """Registers a model; returns the key for its requests."""
        key = next(self._keys)
        self._configs[key] = pickle.dumps((key, config))
        with self._lock:
            if self._alive():
                self._send_config(key)
            else:
                self._start()
        return key

    def forget(self, key: int) -> None:
        """Removes the model of a server that ended."""
        self._configs.pop(key, None)

    def open(self) -> socket.socket:
        """Opens a connection to a process for one request."""
        with self._lock:
            if not self._alive():
                self._start()
            return self._connect(b"J")

    def close(self) -> None:
        """Ends the process that forks."""
        if self._control is not None:
            self._control.close()

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self) -> None:
        self.close()
        self._control, other = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pardec.server.parser_process"],
                stdin=other.fileno(),
                env=environment,
                start_new_session=True,
            )
        for key in self._configs:
            self._send_config(key)

    def _send_config(self, key: int) -> None:
        data = self._configs[key]
        connection = self._connect(b"F")

        def send() -> None:  # it reads them when it has started
            with connection, suppress(OSError):
                connection.sendall(len(data).to_bytes(8, "big") + data)

        threading.Thread(target=send, daemon=True).start()

    def _connect(self, kind: bytes) -> socket.socket:
        assert self._control is not None, "started"
        own, other = socket.socketpair()
        with other:
            socket.send_fds(self._control, [kind], [other.fileno()])
        return own


_parent = _Parent()
atexit.register(_parent.close)


class ParserProcesses:
    """Parses the requests of one server in processes, taking clients in turn."""

    def __init__(self, config: ParserConfig, seconds: float) -> None:
        self.config, self.seconds = config, seconds
        self._key: int | None = None
        self._free = AT_ONCE
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # waiting requests per client

    def start(self) -> None:
        """Registers the model with the process that forks."""
        if POSSIBLE and self._key is None:
            self._key = _parent.add(self.config)

    def stop(self) -> None:
        """Removes the model."""
        if self._key is not None:
            _parent.forget(self._key)

    async def parse(self, client: str, data: bytes, schema: type[Body]) -> ParsedBody:
        """Returns the request after the costly part.

        Raises:
            RequestError: what is wrong with it, or that it took too much time or memory.
        """
        if not POSSIBLE:
            return await asyncio.to_thread(parse_request, self.config, data, schema)
        self.start()
        await self._enter(client)
        try:
            answer = await self._ask(pickle.dumps((self._key, data, schema, self.seconds)))
        finally:
            self._leave()
        if isinstance(answer, ParsedBody):
            return answer
        status, message, param, code = answer
        raise RequestError(message, param=param, code=code, status=status)

    async def _ask(self, job: bytes) -> Any:
        loop = asyncio.get_running_loop()
        with _parent.open() as connection:
            connection.setblocking(False)
            try:
                await loop.sock_sendall(connection, len(job).to_bytes(8, "big") + job)
                parts = bytearray()
                async with asyncio.timeout(_START + WALL * self.seconds):
                    while part := await loop.sock_recv(connection, 2**20):
                        parts += part
                return pickle.loads(parts)
            except (OSError, EOFError, pickle.UnpicklingError):  # TimeoutError is an OSError
                message = f"reading the request took more than {self.seconds:g} s or too much memory: ask for less"
                raise RequestError(message, code="request_too_complex") from None

    async def _enter(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            if not ticket.cancelled():  # it had its turn already
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            client, tickets = self._waiting.popitem(last=False)
            ticket = tickets.popleft()
            if tickets:
                self._waiting[client] = tickets  # after the other clients
            if not ticket.cancelled():
                ticket.set_result(None)
                return
        self._free += 1
