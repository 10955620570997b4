"""A clock of named parts; the time of an inner part does not count for the outer one."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import torch

Stage = TypeVar("Stage")
Result = TypeVar("Result")


def timer(device: torch.device) -> tuple[str, Callable[[], float]]:
    """The timer for a device, with its name: process time for one thread on a CPU, else wall time.

    Other programs on the machine hardly change process time, but may double wall time.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return "process", time.process_time
    return "wall", time.perf_counter


def settle(device: torch.device) -> None:
    """Waits until a GPU has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(run: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """Returns the result of `run` and the seconds that it took."""
    now = timer(device)[1]
    settle(device)
    start = now()
    result = run()
    settle(device)
    return result, now() - start


class Clock:
    """Adds up the seconds of named parts; waits for the GPU at the start and end of each."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, dict[str, float]()
        self.readings = 0
        self._now = timer(device)[1]
        self._parts: list[str] = []
        self._since = 0.0

    def inside(self, name: str) -> bool:
        """Whether the part `name` is running."""
        return name in self._parts

    def wrap(self, call: Callable[..., Any], name: str | Callable[[], str]) -> Callable[..., Any]:
        """Wraps `call`, so that its time counts towards `name`, or towards the part that `name` returns."""

        def wrapper(*args: Any, **options: Any) -> Any:
            self._read()
            self._parts.append(name if isinstance(name, str) else name())
            try:
                return call(*args, **options)
            finally:
                self._read()
                self._parts.pop()

        return wrapper

    def stage(self, stage: Stage, names: tuple[str, ...], part: str) -> Stage:
        """A copy of a stage whose methods `names` count towards `part`; the stage itself is not changed."""
        clone = copy(stage)
        vars(clone).update({name: self.wrap(getattr(stage, name), part) for name in names})
        return clone

    def _read(self) -> None:
        """Adds the time since the last reading to the innermost running part."""
        settle(self.device)
        now = self._now()
        self.readings += 1
        if self._parts:
            name = self._parts[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
