"""Trains a run until it is done or told to stop, for every training command."""

from __future__ import annotations

import signal
import sys
import time

from pardec.training.resumable import Resumable


def until_done(run: Resumable) -> None:
    """Trains; a signal to end stops the run after the step in progress, and the process exits with 130."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: run.stop())
    started = time.monotonic()
    run.train()
    print(f"{run.name}: step {run.step}, {time.monotonic() - started:.0f} s here", file=sys.stderr)
    if run.stopping:
        sys.exit(130)  # interrupted, the state is saved: the same command continues
