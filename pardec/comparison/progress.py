"""How far a run is: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 10.0  # seconds between two lines

Tell = Callable[[int], None]  # takes the rows that are done by now


@contextmanager
def progress(shown: bool | None, total: int, done: int, references: int = 0) -> Iterator[Tell]:
    """A function that is told how many of `total` rows are done; `done` of them were before this run.

    Args:
        references: how many of them are decoded only for others to be held to.
        shown: True for a bar or lines, None for a bar where stderr is a terminal, False for nothing.
    """
    whose = f" ({references} of references)" if references else ""  # why there are more rows than problems asked for
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if shown is False or (shown is None and not terminal) or total == done:
        yield lambda now: None
    elif terminal:
        with _bar(total, done, whose) as tell:
            yield tell
    else:
        yield Lines(total, done, whose)


class Lines:
    """A line every few seconds: rows done, and the time left at the pace of this run."""

    def __init__(self, total: int, done: int, whose: str = "") -> None:
        self.total, self.before, self.whose = total, done, whose
        self.started = self.reported = time.monotonic()

    def __call__(self, now: int) -> None:
        moment = time.monotonic()
        if moment - self.reported < EVERY_S and now < self.total:
            return
        self.reported = moment
        ahead = (self.total - now) * (moment - self.started) / max(now - self.before, 1)
        rest = f", {clock(ahead)} left" if now < self.total else f" in {clock(moment - self.started)}"
        print(f"{now} of {self.total} rows{self.whose}{rest}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """A time span as people write it.

    >>> clock(83), clock(7384)
    ('1:23', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def _bar(total: int, done: int, whose: str) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"rows{whose}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=total, completed=done)
        yield lambda now: bar.update(task, completed=now)
