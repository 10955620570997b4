"""Prompts of any number through one batch: a finished row leaves, and the next prompt takes its slot.

So throughput does not fall to the slowest row of a batch. A row's tokens are those of `generate` alone with its seed.
A masked model takes new rows at any step, each at the start of its own first block; an autoregressive one feeds their
prompts in a forward of their own and then verifies all rows together. What cannot be joined while it is under way waits
until the batch has drained, and `Serving.waits` says why: images of vectors, samplers whose memory is of all rows at
once, `allowed`.
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
from .queue import Waiting, together

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..engine import Engine

Loop = MaskedLoop | VerifyLoop


@dataclass(frozen=True, eq=False)
class Served:
    """A finished row: which prompt it is of, from 0, its result, of one row, and which of several of its prompt it is.

    `result.timing` runs from the row's admission to its last commit, beside others; of images of vectors it is their
    share of the batch's. `result.padding` is 0: what batches feed beside their rows is nobody's.
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
    """What the batch under way has cost by now, from the first row that it took to the last that left."""

    rows: int  # that it has taken
    seconds: float = 0.0  # in the loop; prompts read and texts made are outside
    forwards: int = 0  # of the batch, those over the prompts of rows that join it among them
    padding: int = 0  # positions fed that belong to no row (verify loop)


class Serving(Iterator[Served]):
    """Finished rows, in the order in which they finish. Close it, or leave the `with`, to stop early.

    Attributes:
        waits: why the rows of the batch under way cannot be replaced one by one, so that it drains before the next
            begins; None where they are.
        batch: what the batch of the row just told has cost; a new one begins where one had to drain.
        rows, tokens, forwards: what is finished: rows, their generated tokens, and the forwards that the rows took
            part in.
        seconds: spent on it, prompts read and texts made included; what happens between two rows is not.
    """

    def __init__(
        self,
        model: Engine,
        queue: Iterator[Waiting],
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
        self._next: Waiting | None = None  # read, and of another kind than the batch under way
        self._error: Exception | None = None  # of a prompt; told when the rows before it are done
        self._served = self._serve()

    def __iter__(self) -> Serving:
        return self

    def __next__(self) -> Served:
        began = time.perf_counter()
        try:
            with self._guard():
                served = next(self._served)
        finally:
            self.seconds += time.perf_counter() - began
        self.rows += 1
        self.tokens += served.result.timing.tokens
        self.forwards += served.nfe
        return served

    def close(self) -> None:
        """Frees what the batch under way holds; nothing more is read."""
        self._served.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- rows that wait ---

    def _take(self, most: int, kind: tuple[Any, ...] | None = None) -> list[Waiting]:
        """Up to so many next rows that can stand together, with others of this kind."""
        taken: list[Waiting] = []
        while len(taken) < most:
            row = self._next or self._pull()
            if row is None:
                break
            self._next = None
            kind = row.kind if kind is None else kind
            if row.kind != kind:
                self._next = row
                break
            taken.append(row)
        return taken

    def _pull(self) -> Waiting | None:
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
        return replace(row, call=replace(cast("Any", row.call), sampler=self._sampler))  # what they remember is one

    # --- decoding ---

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Counts what runs inside towards the batch."""
        began = time.perf_counter()
        yield
        self.batch.seconds += time.perf_counter() - began

    def _serve(self) -> Generator[Served, None, None]:
        while taken := self._take(self.batch_size):
            self.batch = Batch(len(taken))
            vectors = isinstance(taken[0].call, VectorCall)
            with closing(cast("Any", self._whole_batch(taken) if vectors else self._batch(taken))) as served:
                yield from served
        if self._error is not None:
            raise self._error

    def _whole_batch(self, taken: list[Waiting]) -> Iterator[Served]:
        """Images of vectors, a whole batch at a time."""
        self.waits = "images of vectors are drawn a whole batch at a time"
        first = cast("VectorCall", taken[0].call)
        labels = tuple(label for row in taken for label in row.request.labels)
        call = replace(first, request=replace(first.request, labels=labels))
        call = call.seeded([row.call.seeds[0] for row in taken])
        with self._timed():
            *_, last = self.model.run(call, steps=False)
        assert isinstance(last, Finished), "a loop ends with Finished"
        self.batch.forwards = max(last.nfe)
        whole = self.model.result(call, last, self.batch.seconds)
        for at, row in enumerate(taken):
            yield Served(row.index, one_row(whole, at), row.sample)

    def _batch(self, taken: list[Waiting]) -> Iterator[Served]:
        """A batch, from its first rows until nothing is left that can join it."""
        kind = taken[0].kind
        with self._timed():
            slots, loop = self._seated(taken), self._opened(taken)
        try:
            yield from self._ended(loop, slots, loop.over())
            first = True
            while len(loop.rows):
                with self._timed():
                    self._advance(loop)
                    if first:
                        self.waits, first = loop.alone(), False
                    over = loop.over()
                    ends = list(loop.leave(over))
                for end in ends:
                    yield self._row(loop, slots[end.row], end)
                free = np.flatnonzero(over)
                while len(free) and self.waits is None and (more := self._take(len(free), kind)):
                    with self._timed():
                        seated, other = self._seated(more), self._opened(more, loop)
                    self.batch.rows += len(more)
                    try:
                        free = yield from self._join(loop, slots, free, other, seated)
                    finally:
                        other.memory.clear()
                if len(free):
                    loop.keep(np.setdiff1d(np.arange(len(loop.rows)), free))
        finally:
            loop.memory.clear()  # states may hold the context, which refers back to them

    def _join(
        self, loop: Loop, slots: list[Waiting], free: np.ndarray, other: Loop, more: list[Waiting]
    ) -> Generator[Served, None, np.ndarray]:
        """Lets the rows of `other` in; yields those that are done at once, and returns the slots that stay free."""
        if isinstance(other, VerifyLoop):
            yield from self._ended(other, more, other.over())
            if len(other.rows):
                with self._timed():
                    self._advance(other)  # their prompts
        yield from self._ended(other, more, other.over())
        where, free = free[: len(other.rows)], free[len(other.rows) :]
        if len(where):
            with self._timed():
                for number, old in zip(loop.rows[where].tolist(), other.rows.tolist(), strict=True):
                    slots[number] = more[old]
                loop.put(where, cast("Any", other))
        return free

    def _ended(self, loop: Loop, slots: list[Waiting], over: np.ndarray) -> Iterator[Served]:
        """The rows that are done; they leave."""
        if over.any():
            for end in list(loop.leave(over)):
                yield self._row(loop, slots[end.row], end)
            loop.keep(np.flatnonzero(~over))

    def _seated(self, taken: list[Waiting]) -> list[Waiting]:
        """These rows, admitted now by the clock of the batch."""
        return [replace(row, began=self.batch.seconds) for row in taken]

    def _opened(self, taken: list[Waiting], beside: Loop | None = None) -> Loop:
        """A loop for these rows, which may join the one that they are to stand `beside`."""
        request, network = together(taken), self.model.language_model
        if isinstance(self._sampler, SpeculativeSampler):
            return VerifyLoop(network, self._sampler, request)
        assert isinstance(self._sampler, MaskedSampler), "the family says so"
        columns = beside.canvas.length if isinstance(beside, MaskedLoop) else 0
        return MaskedLoop(network, self._sampler, request, columns=columns)

    def _advance(self, loop: Loop) -> None:
        """One forward of these rows, and what it costs the batch."""
        self.batch.forwards += 1
        if isinstance(loop, VerifyLoop):
            before = loop.forward.padded
            loop.round()
            self.batch.padding += (loop.forward.padded - before) * loop.forward.cache.copies
        else:
            loop.step()

    def _row(self, loop: Loop, row: Waiting, end: RowFinished) -> Served:
        seconds = self.batch.seconds - row.began
        return Served(row.index, self.model.result(row.call, loop.finished(end.row), seconds), row.sample)
