"""Whole steps of a loop as CUDA graphs: a forward together with what the loop computes before and after it.

Such a step changes memory that outlives it, `StepMemory`, and reads one table of numbers that the host fills.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ..plan import Hidden, Plan, Visible

_IDLE = 2  # limit of idle memories
_numbers = count(1)

Run = Callable[[Plan], Hidden]  # the forward of a step, over its cache


class Step(Protocol):
    """A step as a function of its table [R, N] that returns the one result that the host needs."""

    @property
    def reads(self) -> Sequence[int]:
        """The columns of the table that this step reads in addition to those that every step reads."""
        ...

    def __call__(self, table: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """What the host knows of a step's forward, of `rows` times `width` queries; the rest is in the step's table."""

    rows: int
    width: int
    visible: Visible  # the pattern without its tensors
    uniform: int | None  # as in `Plan`, and `span` too
    span: tuple[int, int] | None


@dataclass(eq=False, slots=True)
class StepMemory:
    """Tensors at fixed addresses, for one request at a time."""

    tensors: dict[str, Tensor]
    size: Hashable
    number: int = field(default_factory=lambda: next(_numbers))
    replays: int = 0  # number of replays on this memory


class StepMemories:
    """Hands memories from one request to the next, with the graphs that were captured on them."""

    def __init__(self, on_drop: Callable[[int], None]) -> None:
        """`on_drop` gets the number of a dropped memory."""
        self._on_drop = on_drop
        self._idle: list[StepMemory] = []

    def acquire(self, size: Hashable, make: Callable[[], dict[str, Tensor]]) -> StepMemory:
        """A memory of this size, with tensors as `make` makes them; their contents are undefined."""
        idle = next((memory for memory in self._idle if memory.size == size), None)
        if idle is not None:
            self._idle.remove(idle)
        while len(self._idle) > _IDLE:
            self._on_drop(self._idle.pop(0).number)
        return StepMemory(make(), size) if idle is None else idle

    def release(self, memory: StepMemory) -> None:
        """Takes back a memory that nobody uses. The garbage collector may call this any time: it does nothing else."""
        self._idle.append(memory)

    @property
    def nbytes(self) -> int:
        """Bytes of the idle memories."""
        return sum(tensor.nbytes for memory in self._idle for tensor in memory.tensors.values())


@dataclass(slots=True, eq=False)
class StepGraph:
    """One captured step.

    Attributes:
        table: [R, N] int64, written by the host before a replay.
        result: what the step returned; the next replay overwrites it.
        reads: see `Step.reads`.
        sent: what the host wrote last.
    """

    table: Tensor
    replay: Callable[[], Any]
    result: Tensor
    reads: Sequence[int]
    memory: Any  # tensors that must live as long as the graph
    sent: np.ndarray | None = None
