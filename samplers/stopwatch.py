"""Times the parts of a request without making the host wait for a GPU before the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Sums the time spent in named parts."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._host: dict[str, float] = {}
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Adds the time of the block to `name`."""
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
        """Seconds by name; on a GPU this waits until all queued work is done."""
        seconds = dict(self._host)
        if self._marks:
            torch.cuda.synchronize()
            for name, first, last in self._marks:
                seconds[name] = seconds.get(name, 0.0) + first.elapsed_time(last) / 1000
        return seconds
