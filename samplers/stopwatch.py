"""Where the seconds of a request go, part by part; no host waits for a GPU before all is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the time that named parts take."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._host: dict[str, float] = {}
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts what runs inside towards `name`."""
        if self._cuda:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            first.record()
            yield
            last.record()
            self._marks.append((name, first, last))
        else:
            started = time.perf_counter()
            yield
            self._host[name] = self._host.get(name, 0.0) + time.perf_counter() - started

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name; on a GPU this waits for what still runs."""
        found = dict(self._host)
        if self._marks:
            torch.cuda.synchronize()
            for name, first, last in self._marks:
                found[name] = found.get(name, 0.0) + first.elapsed_time(last) / 1000
        return found
