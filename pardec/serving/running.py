"""A batch under way: one loop, whose rows leave when they are finished and whose slots other rows take."""

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
    """What a batch has cost so far, from the first row that it admitted to the last that left."""

    rows: int  # admitted so far
    seconds: float = 0.0  # in the loop, without reading prompts and decoding texts
    forwards: int = 0  # of the batch, including those over the prompts of rows that join it
    padding: int = 0  # positions fed that belong to no row (verify loop)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Adds the time of what runs inside."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a live row is."""

    tokens: np.ndarray  # [L] int64, the row's canvas
    open: np.ndarray  # [L] bool
    settled: int  # the tokens before it are final
    nfe: int
    logprobs: Callable[[int, int], TokenLogprobs] | None = None  # of positions from, and to before; None where off


class Decoding(Protocol):
    """What a batch needs of the model."""

    def run(self, call: Call) -> Iterator[Event]: ...
    def result(self, call: Call, end: Finished, seconds: float) -> Result: ...
    def check_weights_unchanged(self, version: int) -> None: ...


class Loops(Protocol):
    """What a batch of tokens needs of the driver: its loop, and one forward of it."""

    feeds_prompts: ClassVar[bool]  # whether rows that join are fed their prompts in a forward of their own

    @abstractmethod
    def start(self, sampler: Any, request: Request, running: Any) -> Loop:
        """A loop, made to join the `running` one unless that is None."""

    @abstractmethod
    def step(self, loop: Any) -> int:
        """One forward of a loop; how many positions it fed that belong to no row."""

    @abstractmethod
    def progress(self, loop: Any, at: int) -> Progress:
        """How far the row at an index of a loop is."""


class TokenBatch:
    """Rows of discrete tokens, which others can join. Close it in the end, so that its memory is freed at once.

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
        self._version = rows[0].call.weights_version  # of the weights that its K/V come from
        self._rows = dict(enumerate(rows))  # by index in the loop's request
        self._admitted_at = dict.fromkeys(self._rows, 0.0)
        with self.cost.timing():
            self._loop = self._start(rows)

    @property
    def live(self) -> list[QueuedRow]:
        """The rows that are not finished, in the order of the slots."""
        return [self._rows[index] for index in np.delete(self._loop.rows, self.free).tolist()]

    @property
    def joinable(self) -> bool:
        """Whether rows can join now: not before the first forward, which makes what stages remember."""
        return self.cost.forwards > 0 and self.waits is None

    def advance(self) -> Ended:
        """One forward of every live row; the rows that are finished."""
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
        """Takes these rows in, of the kind of the others, where it is `joinable`; those that are finished at once."""
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
        """Removes rows that nobody waits for any more."""
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
        """How far each live row is; nothing where no part of a row is final before its end."""
        loop = self._loop
        for at, index in enumerate(loop.rows.tolist()):
            if at not in self.free:
                logprobs = None if loop.logprobs is None else partial(loop.logprobs.row, at)
                yield self._rows[index], replace(self._driver.progress(loop, at), logprobs=logprobs)

    def close(self) -> None:
        """Frees the memory."""
        self._loop.close()

    def _start(self, rows: Sequence[QueuedRow], running: Loop | None = None) -> Loop:
        """A loop for these rows, made to join the `running` one where there is one."""
        for row in rows:
            self.model.check_weights_unchanged(row.call.weights_version)
        return self._driver.start(self._sampler, merge_requests(rows), running)

    def _forward(self, loop: Loop) -> None:
        """Runs one forward of these rows and adds its cost."""
        self.model.check_weights_unchanged(self._version)
        self.cost.forwards += 1
        self.cost.padding += self._driver.step(loop)

    def _finished(self, loop: Loop) -> Ended:
        """The rows of the batch that are over; their slots become free."""
        over = loop.finished_rows()
        self.free = np.flatnonzero(over)
        return [self._result(loop, self._rows[end.row], end, self._admitted_at[end.row]) for end in loop.leave(over)]

    def _ended(self, loop: Loop, rows: Sequence[QueuedRow], admitted_at: float) -> Ended:
        """Removes the rows of a joining loop that are over."""
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
    """Rows of one loop that none can join, and which leave together."""

    joinable = gives_slots = intact = False
    free = np.zeros(0, dtype=np.int64)

    def __init__(self, model: Decoding, rows: Sequence[QueuedRow], request: Any, waits: str) -> None:
        """`request` has all of these rows."""
        self.model, self.cost, self.rows = model, Cost(len(rows)), list(rows)
        self.waits: str | None = waits
        self.call = replace(rows[0].call, request=request).seeded([row.call.seeds[0] for row in rows])
        self.live = list(rows)
        self._events = cast("Generator[Event, None, None]", model.run(self.call))

    def advance(self) -> Ended:
        """One round; all rows, after the last one."""
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
