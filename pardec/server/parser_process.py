"""The process that forks a parser for each request; the kernel ends a parser at its limits.

Run by `pardec.server.parser_processes` as `python -m pardec.server.parser_process`, with its end of a socket as
standard input. The other end sends one descriptor per request, and closes when the server ends.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .body_parser import WALL, parse_request
from .errors import as_request_error

if TYPE_CHECKING:
    from .body_parser import ParserConfig
    from .schemas import Body

CONFIG = b"F"  # the kind of a connection that registers a model; any other kind is a request
NICE, NICER = 5, 14  # niceness at the start, and after QUICK seconds, so that short requests go first
QUICK = 0.25
_MEMORY = 2**30  # bytes that a request may add


def main() -> None:
    """Serves requests until the other end closes the connection."""
    control = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    known: dict[int, ParserConfig] = {}
    while True:
        kind, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not kind:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if kind == CONFIG:
                key, config = pickle.loads(_read(connection))
                config.warm()
                known[key] = config
            elif os.fork() == 0:
                try:
                    control.close()
                    _job(connection, known)
                finally:
                    os._exit(0)


def _job(connection: socket.socket, known: dict[int, ParserConfig]) -> None:
    """Parses one request; the kernel ends it when its time is up or its client disconnects."""
    key, data, schema, seconds = pickle.loads(_read(connection))
    _limit(connection, seconds)
    try:
        answer = _answer(known[key], data, schema)
    except MemoryError:
        return
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) & ~os.O_ASYNC)
    connection.sendall(pickle.dumps(answer))


def _answer(config: ParserConfig, data: bytes, schema: type[Body]) -> Any:
    """The parsed request, or the parts of its error; a fault of pardec is written to the server's log."""
    try:
        return parse_request(config, data, schema)
    except MemoryError:
        raise
    except RecursionError:
        return (400, "the request is nested too deeply", None, None)
    except Exception as error:
        answer = as_request_error(error)
        if answer.code == "internal":
            traceback.print_exc()
        return (answer.status, answer.message, answer.param, answer.code)


def _limit(connection: socket.socket, seconds: float) -> None:
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO ends it
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    whole = max(1, round(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, WALL * seconds)  # SIGALRM ends it
    os.nice(NICE)
    signal.signal(signal.SIGPROF, lambda *_: os.nice(NICER))
    signal.setitimer(signal.ITIMER_PROF, QUICK)


def _read(connection: socket.socket) -> bytes:
    """Reads a message from the other end: its length in 8 bytes, then its bytes."""
    size = int.from_bytes(_exactly(connection, 8), "big")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    main()
