"""Continuous batching over any number of prompts: a finished row frees its slot, and the next prompt takes it.

So the slowest row of a batch does not hold up the others. A row's tokens are those of `generate` alone with its seed.
A masked model takes new rows at any step, each at the start of its own first block; an autoregressive one feeds their
prompts in a forward of their own and then verifies all rows together. Where rows cannot join a running batch, the next
ones wait until it has drained, and `Serving.waits` says why: image models with continuous tokens, samplers whose state
covers the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pardec.models.errors import SpecError
from pardec.samplers.events import Finished, RowFinished
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.speculative.contracts import SpeculativeSampler
from pardec.samplers.speculative.loop import VerifyLoop

from ..requests.continuous import VectorCall
from ..result import Result
from ..result_data import one_row
from .queue import QueuedRow, merge_requests

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..engine import Engine

Loop = MaskedLoop | VerifyLoop


@dataclass(frozen=True, eq=False)
class Served:
    """A finished row: the index of its prompt, from 0; its result, of one row; which of the prompt's samples it is.

    `result.timing` runs from the row's admission to its last commit, beside others; for images with continuous tokens
    it is their share of the batch's. `result.padding` is 0: a batch's padding is counted for no single row.
    """

    index: int
    result: Result
    sample: int = 0

    @property
    def text(self) -> str | None:
        return None if self.result.text is None else self.result.text[0]

    @property
    def tokens(self) -> list[int]:
        return self.result.tokens[0]

    @property
    def finish(self) -> str:
        return self.result.finish[0]

    @property
    def nfe(self) -> int:
        return self.result.nfe[0]

    @property
    def seed(self) -> int:
        return self.result.seeds[0]

    @property
    def image(self) -> Image | None:
        return None if self.result.images is None else self.result.images[0]


@dataclass(slots=True)
class Batch:
    """What the current batch has cost so far, from the first row that it admitted to the last that left."""

    rows: int  # admitted so far
    seconds: float = 0.0  # in the loop, without reading prompts and decoding texts
    forwards: int = 0  # of the batch, including those over the prompts of rows that join it
    padding: int = 0  # positions fed that belong to no row (verify loop)


class Serving(Iterator[Served]):
    """Finished rows, in the order in which they finish. Close it, or leave the `with`, to stop early.

    Attributes:
        waits: why the rows of the current batch cannot be replaced one by one, so that it drains before the next
            begins; None where they can.
        batch: what the batch of the latest row has cost; a new one begins where one had to drain.
        rows, tokens, forwards: totals of finished rows: rows, their generated tokens, and the forwards that each took
            part in.
        seconds: time inside this iterator, reading prompts and decoding texts included; the caller's own is not.
    """

    def __init__(
        self,
        model: Engine,
        queue: Iterator[QueuedRow],
        batch_size: int,
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise SpecError(f"batch_size is a whole number of at least 1, got {batch_size!r}", hint="batch_size=8")
        self.model, self.batch_size, self._queue, self._guard = model, batch_size, queue, guard
        self.waits: str | None = None
        self.batch = Batch(0)
        self.rows = self.tokens = self.forwards = 0
        self.seconds = 0.0
        self._sampler: Any = None
        self._next: QueuedRow | None = None  # read, but not compatible with the current batch
        self._error: Exception | None = None  # of a prompt; raised when the rows before it are finished
        self._served = self._serve()

    def __iter__(self) -> Serving:
        return self

    def __next__(self) -> Served:
        start = time.perf_counter()
        try:
            with self._guard():
                served = next(self._served)
        finally:
            self.seconds += time.perf_counter() - start
        self.rows += 1
        self.tokens += served.result.timing.tokens
        self.forwards += served.nfe
        return served

    def close(self) -> None:
        """Frees the memory of the current batch and reads no further prompt."""
        self._served.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- queued rows ---

    def _next_rows(self, limit: int, kind: tuple[Any, ...] | None = None) -> list[QueuedRow]:
        """Up to `limit` of the next rows, all of one `kind`: by default, that of the first."""
        rows: list[QueuedRow] = []
        while len(rows) < limit:
            row = self._next or self._pull()
            if row is None:
                break
            self._next = None
            kind = row.kind if kind is None else kind
            if row.kind != kind:
                self._next = row
                break
            rows.append(row)
        return rows

    def _pull(self) -> QueuedRow | None:
        if self._error is not None:
            return None
        try:
            row = next(self._queue, None)
        except Exception as error:
            self._error = error
            return None
        if row is None:
            return None
        if self._sampler is None:
            self._sampler = row.call.sampler
        return replace(row, call=replace(cast("Any", row.call), sampler=self._sampler))  # whose state all rows share

    # --- decoding ---

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds the time of what runs inside to the batch's."""
        start = time.perf_counter()
        yield
        self.batch.seconds += time.perf_counter() - start

    def _serve(self) -> Generator[Served, None, None]:
        while rows := self._next_rows(self.batch_size):
            self.batch = Batch(len(rows))
            continuous = isinstance(rows[0].call, VectorCall)
            with closing(cast("Any", self._whole_batch(rows) if continuous else self._batch(rows))) as served:
                yield from served
        if self._error is not None:
            raise self._error

    def _whole_batch(self, rows: list[QueuedRow]) -> Iterator[Served]:
        """Images with continuous tokens, a whole batch at a time."""
        self.waits = "images with continuous tokens are generated a whole batch at a time"
        first = cast("VectorCall", rows[0].call)
        labels = tuple(label for row in rows for label in row.request.labels)
        call = replace(first, request=replace(first.request, labels=labels))
        call = call.seeded([row.call.seeds[0] for row in rows])
        with self._timed():
            *_, last = self.model.run(call, steps=False)
        assert isinstance(last, Finished), "a loop ends with Finished"
        self.batch.forwards = max(last.nfe)
        whole = self.model.result(call, last, self.batch.seconds)
        for slot, row in enumerate(rows):
            yield Served(row.index, one_row(whole, slot), row.sample)

    def _batch(self, rows: list[QueuedRow]) -> Iterator[Served]:
        """A batch, from its first rows until nothing is left that can join it."""
        kind = rows[0].kind
        with self._timed():
            slots, loop = self._admit(rows), self._start_loop(rows)
        try:
            yield from self._remove_finished(loop, slots, loop.finished_rows())
            first = True
            while len(loop.rows):
                with self._timed():
                    self._advance(loop)
                    if first:
                        self.waits, first = loop.batching_obstacle(), False
                    over = loop.finished_rows()
                    ends = list(loop.leave(over))
                for end in ends:
                    yield self._row(loop, slots[end.row], end)
                free = np.flatnonzero(over)
                while len(free) and self.waits is None and (more := self._next_rows(len(free), kind)):
                    with self._timed():
                        new_rows, new_loop = self._admit(more), self._start_loop(more, loop)
                    self.batch.rows += len(more)
                    try:
                        free = yield from self._join(loop, slots, free, new_loop, new_rows)
                    finally:
                        new_loop.memory.clear()
                if len(free):
                    loop.keep(np.setdiff1d(np.arange(len(loop.rows)), free))
        finally:
            loop.memory.clear()  # states may refer to the context, which refers back to them

    def _join(
        self, loop: Loop, slots: list[QueuedRow], free: np.ndarray, new_loop: Loop, new_rows: list[QueuedRow]
    ) -> Generator[Served, None, np.ndarray]:
        """Moves the rows of `new_loop` in; yields those that finish at once, and returns the slots that stay free."""
        if isinstance(new_loop, VerifyLoop):
            yield from self._remove_finished(new_loop, new_rows, new_loop.finished_rows())
            if len(new_loop.rows):
                with self._timed():
                    self._advance(new_loop)  # their prompts
        yield from self._remove_finished(new_loop, new_rows, new_loop.finished_rows())
        targets, free = free[: len(new_loop.rows)], free[len(new_loop.rows) :]
        if len(targets):
            with self._timed():
                for slot, old in zip(loop.rows[targets].tolist(), new_loop.rows.tolist(), strict=True):
                    slots[slot] = new_rows[old]
                loop.put(targets, cast("Any", new_loop))
        return free

    def _remove_finished(self, loop: Loop, slots: list[QueuedRow], over: np.ndarray) -> Iterator[Served]:
        """Takes the finished rows out of the loop and yields them."""
        if over.any():
            for end in list(loop.leave(over)):
                yield self._row(loop, slots[end.row], end)
            loop.keep(np.flatnonzero(~over))

    def _admit(self, rows: list[QueuedRow]) -> list[QueuedRow]:
        """These rows, with the batch's time now as that of their admission."""
        return [replace(row, admitted_at=self.batch.seconds) for row in rows]

    def _start_loop(self, rows: list[QueuedRow], running: Loop | None = None) -> Loop:
        """A loop for these rows, made to join the `running` one where there is one."""
        request, network = merge_requests(rows), self.model.language_model
        if isinstance(self._sampler, SpeculativeSampler):
            return VerifyLoop(network, self._sampler, request)
        assert isinstance(self._sampler, MaskedSampler), "a masked model"
        columns = running.canvas.length if isinstance(running, MaskedLoop) else 0
        return MaskedLoop(network, self._sampler, request, columns=columns)

    def _advance(self, loop: Loop) -> None:
        """Runs one forward of these rows and adds its cost to the batch's."""
        self.batch.forwards += 1
        if isinstance(loop, VerifyLoop):
            before = loop.forward.padded
            loop.round()
            self.batch.padding += (loop.forward.padded - before) * loop.forward.cache.copies
        else:
            loop.step()

    def _row(self, loop: Loop, row: QueuedRow, end: RowFinished) -> Served:
        seconds = self.batch.seconds - row.admitted_at
        return Served(row.index, self.model.result(row.call, loop.finished(end.row), seconds), row.sample)
