"""Trains a run until it is done or told to stop, for every training command."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from pardec.models.errors import PardecError
from pardec.training.resumable import Resumable


def until_done(start: Callable[[], Resumable]) -> None:
    """Trains the run that `start` sets up; an error of pardec is printed in two lines.

    A signal to end stops the run after the step in progress, and the process exits with 130.
    """
    try:
        _train(start())
    except PardecError as error:
        sys.exit("\n".join(filter(None, (f"error: {error}", error.hint))))


def _train(run: Resumable) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: run.stop())
    started = time.monotonic()
    run.train()
    print(f"{run.name}: step {run.step}, {time.monotonic() - started:.0f} s here", file=sys.stderr)
    if run.stopping:
        sys.exit(130)  # interrupted, the state is saved: the same command continues
