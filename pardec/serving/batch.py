"""Continuous batching over any number of prompts: a finished row frees its slot, and the next prompt takes it.

So the slowest row of a batch does not hold up the others. A row's tokens are those of `generate` alone with its seed.
A masked model takes new rows at any step, each at the start of its own first block; an autoregressive one feeds their
prompts in a forward of their own and then verifies all rows together. Where rows cannot join a running batch, the next
ones wait until it has drained, and `Serving.waits` says why: images with continuous tokens or of token
maps, samplers whose state covers the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pardec.models.errors import PardecError

from ..requests.argument import check_whole
from ..result import Result
from .rows import QueuedRow
from .running import Cost, Ended, RunningBatch

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..engine import Engine


@dataclass(frozen=True, eq=False)
class Served:
    """A finished row: the index of its prompt, from 0; its result, with one row; the index of the sample of the prompt.

    `result.timing` runs from the row's admission to its last commit, while other rows are decoded too; for images with
    continuous tokens or of token maps it is their share of the batch's. `result.padding` is 0: a batch's padding is
    counted for no single row.
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


class Serving(Iterator[Served]):
    """Finished rows, in the order in which they finish. Close it, or leave the `with`, to stop early.

    Attributes:
        waits: why the rows of the current batch cannot be replaced one by one, so that it drains before the next
            begins; None where they can.
        batch: the cost of the latest row's batch; a new one begins after a batch had to drain.
        rows, tokens, forwards: totals of finished rows: rows, their generated tokens, and the forwards that each took
            part in.
        seconds: time inside this iterator, reading prompts and decoding texts included; the caller's own is not.
        failed: the errors of rows that failed while they were decoded, by the index of their prompt. The first one is
            raised after all other rows.
    """

    def __init__(
        self,
        model: Engine,
        queue: Iterator[QueuedRow],
        batch_size: int,
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        check_whole("batch_size", batch_size, 1, hint="batch_size=8")
        self.model, self.batch_size, self._queue, self._guard = model, batch_size, queue, guard
        self.waits: str | None = None
        self.batch = Cost(0)
        self.rows = self.tokens = self.forwards = 0
        self.seconds = 0.0
        self.failed: dict[int, Exception] = {}
        self._sampler: Any = None
        self._next: QueuedRow | None = None  # read, but not compatible with the current batch
        self._error: Exception | None = None  # a prompt's error, raised when the rows before it are finished
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
        """Up to `limit` of the next rows, all of one `kind`: by default, the kind of the first."""
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
        return replace(row, call=replace(row.call, sampler=self._sampler))  # all rows share the sampler's state

    # --- decoding ---

    def _serve(self) -> Generator[Served, None, None]:
        while rows := self._next_rows(self.batch_size):
            yield from self._decode(rows)
        if self._error is not None:
            raise self._error
        if self.failed:
            index, error = next(iter(self.failed.items()))
            raise _of_prompt(index, error, len(self.failed))

    def _decode(self, rows: list[QueuedRow], *, alone: bool = False) -> Iterator[Served]:
        """Decodes a batch until no row is left that can join it; if it fails, decodes its rows one by one."""
        pending = list(rows)  # rows that were admitted and not yielded
        try:
            with closing(self.model.driver.batch(self.model, rows)) as running:
                for row, served in self._advance(running, pending, None if alone else rows[0].kind):
                    pending.remove(row)
                    yield served
        except Exception as error:
            for row in pending:
                self.model.check_weights_unchanged(row.call.weights_version)
            if alone:
                self.failed[pending[0].index] = error
                return
            for row in pending:
                yield from self._decode([row], alone=True)

    def _advance(
        self, running: RunningBatch, pending: list[QueuedRow], kind: tuple[Any, ...] | None
    ) -> Iterator[tuple[QueuedRow, Served]]:
        """Decodes a batch and the rows that can join it, which it adds to `pending`; none joins if `kind` is None."""
        self.batch = running.cost
        while running.live:
            yield from _served(running.advance())
            self.waits = running.waits
            if running.joinable and kind is not None:
                while len(running.free) and (more := self._next_rows(len(running.free), kind)):
                    pending += more
                    yield from _served(running.join(more))


def _of_prompt(index: int, error: Exception, count: int) -> Exception:
    """The error of prompt `index`, of `count` prompts that failed."""
    others = f", and {count - 1} others failed" if count > 1 else ""
    if isinstance(error, PardecError):
        error.message = f"prompt {index} of serve_batch{others}: {error.message}"
    else:
        error.add_note(f"prompt {index} of serve_batch{others}; all other rows are finished")
    return error


def _served(ended: Ended) -> Iterator[tuple[QueuedRow, Served]]:
    return ((row, Served(row.index, result, row.sample)) for row, result in ended)
