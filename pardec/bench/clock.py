"""A clock of named parts: what an inner part takes is not its outer one's."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import torch

Stage = TypeVar("Stage")
Result = TypeVar("Result")


def reading(device: torch.device) -> tuple[str, Callable[[], float]]:
    """The clock that suits a device, by name: of one thread on a processor, the time that it got; else of the wall.

    What else runs on the machine lengthens the first by little, where it would double the second.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return "process", time.process_time
    return "wall", time.perf_counter


def settle(device: torch.device) -> None:
    """Waits until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(run: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """What `run` gives, and the seconds that it takes."""
    now = reading(device)[1]
    settle(device)
    started = now()
    result = run()
    settle(device)
    return result, now() - started


class Clock:
    """Adds up the seconds that named parts take; a GPU is waited for at each of their ends."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, dict[str, float]()
        self.turns = 0  # how often it was read
        self._now = reading(device)[1]
        self._parts: list[str] = []
        self._since = 0.0

    def inside(self, name: str) -> bool:
        """Whether `name` is under way."""
        return name in self._parts

    def clocked(self, call: Callable[..., Any], name: str | Callable[[], str]) -> Callable[..., Any]:
        """`call`, whose time counts towards `name`, or towards what `name` says at the time."""

        def timed(*args: Any, **options: Any) -> Any:
            self._turn()
            self._parts.append(name if isinstance(name, str) else name())
            try:
                return call(*args, **options)
            finally:
                self._turn()
                self._parts.pop()

        return timed

    def stage(self, stage: Stage, names: tuple[str, ...], part: str) -> Stage:
        """A copy of a stage whose methods `names` count towards `part`; the stage itself stays as it is."""
        made = copy(stage)
        vars(made).update({name: self.clocked(getattr(stage, name), part) for name in names})
        return made

    def _turn(self) -> None:
        """Books what has passed since the last turn on the part under way."""
        settle(self.device)
        now = self._now()
        self.turns += 1
        if self._parts:
            name = self._parts[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
