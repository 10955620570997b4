"""Trains a run until it is done or told to stop, for every training command."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pardec.models.errors import PardecError
from pardec.training.resumable import Resumable


def until_done(start: Callable[[], Resumable]) -> None:
    """Trains the run that `start` sets up.

    A signal to end stops the run after the step in progress, and the process exits with 130.
    """
    with errors_in_two_lines():
        _train(start())


@contextmanager
def errors_in_two_lines() -> Iterator[None]:
    """Exits with the message and the hint of an error of pardec, or of a file that cannot be read or written."""
    try:
        yield
    except PardecError as error:
        sys.exit("\n".join(filter(None, (f"error: {error}", error.hint))))
    except OSError as error:
        if error.filename is None and "No such file" not in str(error):
            raise
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error)  # safetensors has the text alone
        sys.exit(f"error: {what}\ncheck that the path exists and that you may read and write it")


def _train(run: Resumable) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: run.stop())
    started = time.monotonic()
    run.train()
    print(f"{run.name}: step {run.step}, {time.monotonic() - started:.0f} s here", file=sys.stderr)
    if run.stopping:
        sys.exit(130)  # interrupted, the state is saved: the same command continues
