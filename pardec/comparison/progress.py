"""Progress of a run: a bar with the remaining time on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 10.0  # seconds between two lines

Report = Callable[[int], None]  # takes the number of finished rows


@contextmanager
def progress(visible: bool | None, total: int, done: int, references: int = 0) -> Iterator[Report]:
    """Yields a function to call with the number of finished rows, of `total`; `done` were finished before this run.

    Args:
        references: how many of the rows belong to references.
        visible: True for a bar or lines, None for a bar if stderr is a terminal, False for nothing.
    """
    note = f" ({references} of references)" if references else ""  # explains why there are more rows than problems
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if visible is False or (visible is None and not terminal) or total == done:
        yield lambda now: None
    elif terminal:
        with _bar(total, done, note) as report:
            yield report
    else:
        yield Lines(total, done, note)


class Lines:
    """Prints a line every few seconds: finished rows, and the remaining time at the current pace."""

    def __init__(self, total: int, done: int, note: str = "") -> None:
        self.total, self.before, self.suffix = total, done, note
        self.started = self.reported = time.monotonic()

    def __call__(self, finished: int) -> None:
        clock_now = time.monotonic()
        if clock_now - self.reported < EVERY_S and finished < self.total:
            return
        self.reported = clock_now
        time_left = (self.total - finished) * (clock_now - self.started) / max(finished - self.before, 1)
        ending = f", {clock(time_left)} left" if finished < self.total else f" in {clock(clock_now - self.started)}"
        print(f"{finished} of {self.total} rows{self.suffix}{ending}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Formats a duration.

    >>> clock(83), clock(7384)
    ('1:23', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def _bar(total: int, done: int, note: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"rows{note}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=total, completed=done)
        yield lambda now: bar.update(task, completed=now)
