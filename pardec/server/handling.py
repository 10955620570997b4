"""Handles one request: submits its rows to the worker and collects results until it ends or its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pardec.models.errors import SpecError

from ..result import Result
from ..serving.rows import QueuedRow
from ..serving.scheduler import Job
from .answers import event
from .errors import RequestError, as_request_error, in_utf8
from .fields import refusal
from .listening import Advanced, Channel, Ended, Failed, RowListener, Started, Update

if TYPE_CHECKING:
    from .answers import TextAnswer
    from .metrics import Metrics
    from .worker import Worker

_COMMENT = 1.0  # seconds without a byte, after which a stream sends a comment

T = TypeVar("T")
Listen = Callable[[int, Callable[[Update], None], QueuedRow], RowListener]


class Decoding:
    """The rows of one request in the worker; at the end of the `with`, unfinished rows leave the batch."""

    def __init__(
        self, worker: Worker, rows: Sequence[QueuedRow], listen: Listen, deadline: float, client: str = ""
    ) -> None:
        """Raises RequestError if the worker does not accept the rows."""
        self.worker, self.deadline = worker, deadline
        self._channel = Channel()
        listeners = (listen(index, self._channel.send, row) for index, row in enumerate(rows))
        self._jobs = [Job(row, listener, self, client) for row, listener in zip(rows, listeners, strict=True)]
        self._results: dict[int, Result] = {}
        worker.submit(self._jobs)
        self._released = False

    def __enter__(self) -> Decoding:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes unfinished rows from the batch."""
        if not self._released:
            self._released = True
            self.worker.release(self._jobs)

    async def next(self) -> Update | None:
        """The next update of a row; None when all are finished. Raises the error of a row that failed.

        Raises:
            RequestError: 408 where the time is up.
        """
        if len(self._results) == len(self._jobs):
            return None
        try:
            async with asyncio.timeout_at(self.deadline):
                update = await self._channel.get()
        except TimeoutError:
            raise too_long() from None
        if isinstance(update, Failed):
            raise update.error
        if isinstance(update, Ended):
            self._results[update.index] = update.result
        return update

    async def finish(self) -> tuple[list[Result], str | None]:
        """Waits for the results of all rows; also returns why one of them waited."""
        waited = None
        while (update := await self.next()) is not None:
            if isinstance(update, Started) and update.waited is not None:
                waited = update.waited
        return self.results, waited

    @property
    def results(self) -> list[Result]:
        """The results of all rows, once all are finished."""
        return [self._results[index] for index in range(len(self._jobs))]


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Returns the result of `work`, or cancels it and raises ClientDisconnect if the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        over, _ = await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task not in over:
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class TextStream(StreamingResponse):
    """Server-sent events with the text of a request's rows as it becomes final."""

    media_type = "text/event-stream"

    def __init__(self, decoding: Decoding, answer: TextAnswer, metrics: Metrics, since: float) -> None:
        """`since`: when the request arrived, on `time.monotonic`."""
        self._decoding, self._answer = decoding, answer
        self._metrics, self._since = metrics, since
        super().__init__(self._events(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events; however it ends, unfinished rows leave the batch."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._decoding.close()

    async def _events(self) -> AsyncIterator[bytes]:
        answer, began = self._answer, False
        coming = asyncio.ensure_future(self._decoding.next())
        try:
            for each in answer.opened():
                yield each
            while True:
                while not (await asyncio.wait({coming}, timeout=_COMMENT))[0]:
                    yield b": waiting\n\n"  # clients ignore it; it keeps the connection alive
                if (update := coming.result()) is None:
                    break
                coming = asyncio.ensure_future(self._decoding.next())
                if isinstance(update, Started) and update.waited is not None:
                    yield in_utf8(f": waited: {update.waited}\n\n")
                if not began and isinstance(update, Advanced | Ended):
                    self._metrics.began(self._since)
                    began = True
                if isinstance(update, Advanced):
                    if update.canvas is not None:
                        yield event(answer.denoise(update), name="denoise")
                    for each in answer.advanced(update) if update.text else ():
                        yield each
                elif isinstance(update, Ended):
                    for each in answer.ended(update.index, update.result):
                        yield each
            results = self._decoding.results
            self._metrics.finished(results, answer.prompt_tokens)
            for each in answer.closed(results):
                yield each
        except asyncio.CancelledError:
            self._metrics.left()
            raise
        except SpecError as error:
            for each in answer.failed(refusal(error, answer.body)):
                yield each
        except Exception as error:
            for each in answer.failed(as_request_error(error)):
                yield each
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await coming


def too_long() -> RequestError:
    """The error for a request whose time is up."""
    message = "the request took longer than this server allows"
    return RequestError(message, code="timeout", status=HTTPStatus.REQUEST_TIMEOUT)


def monotonic_deadline(seconds: float) -> float:
    """The event loop's time a number of seconds from now."""
    return asyncio.get_running_loop().time() + seconds
