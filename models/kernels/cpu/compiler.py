"""Finds the C compiler, and compiles a file in bounded time."""

from __future__ import annotations

import logging
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fPIC", "-fopenmp")
_SECONDS = 120.0  # limit for all compilations of a process; most take one second, blocks.c takes 13
_MOST = 1 << 20  # bytes; longer output is no compiler's message
_left = _SECONDS

log = logging.getLogger(__name__)


class CompilerError(Exception):
    """A compiler does not start, or fails, or writes no output."""


class TookTooLong(CompilerError):
    """The compiler did not end in time."""


def command() -> tuple[str, ...] | None:
    """$CC, with the options in it, else the first of cc, gcc and clang that exists."""
    return _command(os.environ.get("CC", "").strip())


@cache
def _command(own: str) -> tuple[str, ...] | None:
    for words in filter(None, (own, "cc", "gcc", "clang")):
        if path := _locate(words):
            if own and words != own:
                log.warning("CC=%s names no compiler: %s takes its place", own, words)
            return path
    return None


def _locate(words: str) -> tuple[str, ...] | None:
    if whole := shutil.which(words):
        return (whole,)
    try:
        name, *options = shlex.split(words)
    except ValueError:  # an unclosed quote
        return None
    first = shutil.which(name)
    return (first, *options) if first else None


def build(source: Path, command: Sequence[str], openmp: str) -> bytes:
    """The shared library of a C file, in two steps, so that the linker takes PyTorch's OpenMP and not the compiler's.

    Raises:
        CompilerError: none came of it.
        OSError: there is no room for what lies between the steps.
    """
    with tempfile.TemporaryDirectory(prefix="pardec-") as folder:
        part, whole = Path(folder) / "part.o", Path(folder) / "whole.so"
        for output, arguments in (
            (part, [*FLAGS, "-c", str(source), "-o", str(part)]),
            (whole, ["-shared", str(part), openmp, "-lm", "-o", str(whole)]),
        ):
            report = _run([*command, *arguments])
            if not output.is_file():
                raise CompilerError(f"{command[0]} could not make a library: {report}")
        return whole.read_bytes()


def _run(arguments: Sequence[str]) -> str:
    """Runs a command and returns its output."""
    global _left
    if _left <= 0:
        raise TookTooLong("compilers have taken too long in this process")
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CompilerError(f"{arguments[0]} does not start: {error}") from error
    try:
        report = _read_output(process, start + _left)
        code = process.wait(max(start + _left - time.monotonic(), 0))
    except BaseException as error:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # with all processes that it started
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TookTooLong(f"{arguments[0]} did not end in {_left:.0f} s") from None
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
        _left -= time.monotonic() - start
    words = report.decode(errors="replace")
    if code:
        raise CompilerError(f"{arguments[0]} ended with {code}: {words}")
    return words


def _read_output(process: subprocess.Popen[bytes], until: float) -> bytes:
    """A process's output. Raises TimeoutExpired if it runs past `until`, CompilerError if the output is too long."""
    assert process.stdout is not None
    descriptor, report = process.stdout.fileno(), b""
    poll = select.poll()
    poll.register(descriptor)
    while poll.poll(max(until - time.monotonic(), 0) * 1000):
        part = os.read(descriptor, 1 << 16)
        if not part:
            return report
        report += part
        if len(report) > _MOST:
            raise CompilerError(f"it prints more than {_MOST} bytes: {report[:80]!r}")
    raise subprocess.TimeoutExpired(process.args, 0)
