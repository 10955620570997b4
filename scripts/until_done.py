"""Trains a run until it is done or told to stop, for every training command."""

from __future__ import annotations

import signal
import sys
import time
from typing import Protocol


class Run(Protocol):
    """A training run."""

    name: str
    step: int
    stopping: bool

    def stop(self) -> None: ...

    def train(self) -> None: ...


class Stopwatch:
    """Seconds of training, lap by lap. A lap in which the process or the machine was suspended counts as `LONGEST`."""

    LONGEST = 60.0

    def __init__(self) -> None:
        self._started = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap, or since the start."""
        before, self._started = self._started, time.monotonic()
        return min(self._started - before, self.LONGEST)


def until_done(run: Run) -> None:
    """Trains; a signal to end stops the run after the step in progress, and the process exits with 130."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: run.stop())
    started = time.monotonic()
    run.train()
    print(f"{run.name}: step {run.step}, {time.monotonic() - started:.0f} s here", file=sys.stderr)
    if run.stopping:
        sys.exit(130)  # interrupted, the state is saved: the same command continues
