"""A batch that is being decoded: finished rows leave its loop, and other rows take their slots."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np

from pardec.samplers.batching import add_rows
from pardec.samplers.events import Event, Finished, RowFinished, Step

from ..result import Result
from ..result_data import one_row
from .rows import QueuedRow, merge_requests

if TYPE_CHECKING:
    from pardec.samplers.logprobs import TokenLogprobs
    from pardec.samplers.masked.loop import MaskedLoop
    from pardec.samplers.request import Request
    from pardec.samplers.speculative.loop import VerifyLoop

    from ..requests.call import Call

    Loop = MaskedLoop | VerifyLoop
Ended = list[tuple[QueuedRow, Result]]  # finished rows, each with its result of one row


@dataclass(slots=True)
class Cost:
    """The cost of a batch so far, from the first row that it admitted to the last that left."""

    rows: int  # rows admitted so far
    seconds: float = 0.0  # time in the loop, without reading prompts and decoding texts
    forwards: int = 0  # forwards of the batch, including the prompts of rows that join it
    padding: int = 0  # computed positions that belong to no row (verify loop)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Adds the time of the code inside."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a live row: its tokens, and which of them are final."""

    tokens: np.ndarray  # [L] int64, the row's canvas
    open: np.ndarray  # [L] bool
    settled: int  # the tokens before it are final
    nfe: int
    logprobs: Callable[[int, int], TokenLogprobs] | None = None  # called with start and stop; None where off


class Decoding(Protocol):
    """The methods of the model that a batch calls."""

    def run(self, call: Call) -> Iterator[Event]: ...
    def result(self, call: Call, end: Finished, seconds: float) -> Result: ...
    def check_weights_unchanged(self, version: int) -> None: ...


class Loops(Protocol):
    """The methods of the driver that a batch of tokens calls: to start a loop, and to run one forward of it."""

    feeds_prompts: ClassVar[bool]  # whether the prompts of joining rows take a separate forward

    @abstractmethod
    def start(self, sampler: Any, request: Request, running: Any) -> Loop:
        """Starts a loop whose rows can join the `running` one, if that is not None."""

    @abstractmethod
    def step(self, loop: Any) -> int:
        """Runs one forward of a loop; returns the number of padding positions that it computed."""

    @abstractmethod
    def progress(self, loop: Any, at: int) -> Progress:
        """The progress of the row at an index of a loop."""


class TokenBatch:
    """A batch of discrete tokens that further rows can join. Close it at the end to free its memory at once.

    Attributes:
        waits: why no rows can join; None where they can, and before the first forward.
        free: [n] slots of finished rows.
        intact: False where rows were being moved in when an error came.
        gives_slots: whether the slot of a dropped row is free at once.
    """

    gives_slots = True

    def __init__(self, model: Decoding, driver: Loops, rows: Sequence[QueuedRow]) -> None:
        self.model, self._driver, self.cost = model, driver, Cost(len(rows))
        self.waits: str | None = None
        self.intact = True
        self.free = np.zeros(0, dtype=np.int64)
        self._sampler: Any = rows[0].call.sampler
        self._version = rows[0].call.weights_version  # version of the weights that computed its K/V
        self._rows = dict(enumerate(rows))  # by index in the loop's request
        self._admitted_at = dict.fromkeys(self._rows, 0.0)
        with self.cost.timing():
            self._loop = self._start(rows)

    @property
    def live(self) -> list[QueuedRow]:
        """The live rows, in the order of their slots."""
        return [self._rows[index] for index in np.delete(self._loop.rows, self.free).tolist()]

    @property
    def joinable(self) -> bool:
        """Whether rows can join now: not before the first forward, which creates the state of stages."""
        return self.cost.forwards > 0 and self.waits is None

    def advance(self) -> Ended:
        """Runs one forward of every live row; returns the rows that are finished."""
        first = not self.cost.forwards
        ended = self._finished(self._loop) if first else []  # rows without room for a token
        self.compact()
        if not len(self._loop.rows):
            return ended
        with self.cost.timing():
            self._forward(self._loop)
            if first:
                self.waits = self._loop.batching_obstacle()
        return ended + self._finished(self._loop)

    def join(self, rows: Sequence[QueuedRow]) -> Ended:
        """Adds rows of the batch's kind, if it is `joinable`; returns the rows that are finished at once."""
        self.cost.rows += len(rows)
        now = self.cost.seconds
        with self.cost.timing():
            other = self._start(rows, self._loop)
        try:
            ended = self._ended(other, rows, now)
            if self._driver.feeds_prompts and len(other.rows):
                with self.cost.timing():
                    self._forward(other)
                ended += self._ended(other, rows, now)
            if len(other.rows):
                with self.cost.timing():
                    self._put(other, rows, now)
        finally:
            other.close()
        return ended

    def drop(self, rows: Sequence[QueuedRow]) -> None:
        """Removes rows whose results are no longer needed."""
        gone = {id(row) for row in rows}
        at = [at for at, index in enumerate(self._loop.rows.tolist()) if id(self._rows.get(index)) in gone]
        self.free = np.union1d(self.free, np.array(at, dtype=np.int64))
        self.compact()

    def compact(self) -> None:
        """Removes the free slots."""
        if len(self.free):
            for index in self._loop.rows[self.free].tolist():
                self._rows.pop(index, None)
            self._loop.keep(np.setdiff1d(np.arange(len(self._loop.rows)), self.free))
            self.free = self.free[:0]

    def progress(self) -> Iterator[tuple[QueuedRow, Progress]]:
        """The progress of each live row; empty if no part of a row is final before its end."""
        loop = self._loop
        for at, index in enumerate(loop.rows.tolist()):
            if at not in self.free:
                logprobs = None if loop.logprobs is None else partial(loop.logprobs.row, at)
                yield self._rows[index], replace(self._driver.progress(loop, at), logprobs=logprobs)

    def close(self) -> None:
        """Frees the memory."""
        self._loop.close()

    def _start(self, rows: Sequence[QueuedRow], running: Loop | None = None) -> Loop:
        """Starts a loop for these rows that can join the `running` one, if there is one."""
        for row in rows:
            self.model.check_weights_unchanged(row.call.weights_version)
        return self._driver.start(self._sampler, merge_requests(rows), running)

    def _forward(self, loop: Loop) -> None:
        """Runs one forward of these rows and adds its cost."""
        self.model.check_weights_unchanged(self._version)
        self.cost.forwards += 1
        self.cost.padding += self._driver.step(loop)

    def _finished(self, loop: Loop) -> Ended:
        """Returns the finished rows of the batch and frees their slots."""
        over = loop.finished_rows()
        self.free = np.flatnonzero(over)
        return [self._result(loop, self._rows[end.row], end, self._admitted_at[end.row]) for end in loop.leave(over)]

    def _ended(self, loop: Loop, rows: Sequence[QueuedRow], admitted_at: float) -> Ended:
        """Removes and returns the finished rows of a joining loop."""
        over = loop.finished_rows()
        if not over.any():
            return []
        ended = [self._result(loop, rows[end.row], end, admitted_at) for end in loop.leave(over)]
        loop.keep(np.flatnonzero(~over))
        return ended

    def _result(self, loop: Loop, row: QueuedRow, end: RowFinished, admitted_at: float) -> tuple[QueuedRow, Result]:
        return row, self.model.result(row.call, loop.finished(end.row), self.cost.seconds - admitted_at)

    def _put(self, other: Loop, rows: Sequence[QueuedRow], admitted_at: float) -> None:
        """Moves the rows of `other` into free slots and new ones."""
        loop, count, self.intact = self._loop, len(other.rows), False
        where, self.free = self.free[:count], self.free[count:]
        if len(where) < count:
            where = np.append(where, add_rows(loop, count - len(where)))
        for index, old in zip(loop.rows[where].tolist(), other.rows.tolist(), strict=True):
            self._rows[index], self._admitted_at[index] = rows[old], admitted_at
        loop.put(where, cast("Any", other))
        self.intact = True


class WholeBatch:
    """A batch that no further row can join, and whose rows finish together."""

    joinable = gives_slots = intact = False
    free = np.zeros(0, dtype=np.int64)

    def __init__(self, model: Decoding, rows: Sequence[QueuedRow], request: Any, waits: str) -> None:
        """`request` contains all of these rows."""
        self.model, self.cost, self.rows = model, Cost(len(rows)), list(rows)
        self.waits: str | None = waits
        self.call = replace(rows[0].call, request=request).seeded([row.call.seeds[0] for row in rows])
        self.live = list(rows)
        self._events = cast("Generator[Event, None, None]", model.run(self.call))

    def advance(self) -> Ended:
        """Runs one round; returns all rows after the last one."""
        with self.cost.timing():
            event = next(event for event in self._events if isinstance(event, Step | Finished))
        if not isinstance(event, Finished):
            return []
        self.cost.forwards = max(event.nfe)
        whole = self.model.result(self.call, event, self.cost.seconds)
        wanted, self.live = {id(row) for row in self.live}, []
        return [(row, one_row(whole, slot)) for slot, row in enumerate(self.rows) if id(row) in wanted]

    def join(self, rows: Sequence[QueuedRow]) -> Ended:
        raise RuntimeError("no row can join")

    def drop(self, rows: Sequence[QueuedRow]) -> None:
        """Forgets these rows; ends where none is left."""
        gone = {id(row) for row in rows}
        self.live = [row for row in self.live if id(row) not in gone]

    def progress(self) -> Iterator[tuple[QueuedRow, Progress]]:
        return iter(())

    def close(self) -> None:
        self._events.close()


RunningBatch = TokenBatch | WholeBatch
