"""The thread that owns the model: it decodes submitted rows, and sleeps when there are none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ..serving.scheduler import Job, Scheduler
from .errors import RequestError

if TYPE_CHECKING:
    from ..api import Model
    from .limits import Limits

T = TypeVar("T")

log = logging.getLogger("pardec.server")

_RETRY = {"Retry-After": "1"}


class Worker:
    """Decodes jobs in a separate thread. All methods may be called from any thread."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.scheduler = Scheduler(model, limits.batch_size)
        self._actions: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._rows = 0  # rows submitted and not finished
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pardec-worker", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""
        return self._thread.is_alive() and not self._stopping

    @property
    def rows(self) -> int:
        """The number of rows submitted and not finished."""
        return self._rows

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues the rows of one request: all of them, or none.

        Raises:
            RequestError: 503 where the queue has no room for them, or the server stops.
        """
        with self._lock:
            self._check_open()
            room = self.limits.batch_size + self.limits.queue
            if len(jobs) > 1:
                room -= self.limits.queue // 4  # kept free for requests of one row
            if self._rows + len(jobs) > room:
                message = (
                    f"the queue is full: {self._rows} of at most {room} rows are waiting or running; try again later"
                )
                raise RequestError(message, code="queue_full", headers=_RETRY, status=HTTPStatus.SERVICE_UNAVAILABLE)
            self._rows += len(jobs)
            self._actions.put(lambda: self.scheduler.submit(jobs))

    def release(self, jobs: Sequence[Job]) -> None:
        """Ends the request with these jobs; unfinished ones leave before the next forward."""
        with self._lock:
            self._rows -= len(jobs)
        self._actions.put(lambda: self.scheduler.cancel(jobs))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function between two forwards."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        with self._lock:
            self._check_open()
            self._actions.put(run)
        return future

    def stop(self, grace: float = 0.0) -> None:
        """Accepts no further requests, lets active ones finish for `grace` seconds, then gives them up."""
        with self._lock:
            self._stopping = True
        self._actions.put(lambda: None)  # wakes it
        if not self._thread.is_alive():
            return
        self._thread.join(grace)
        error = RequestError(
            "the server is stopping", code="stopping", headers=_RETRY, status=HTTPStatus.SERVICE_UNAVAILABLE
        )
        self._actions.put(lambda: self.scheduler.close(error))
        self._thread.join(grace + 5.0)  # a forward under way is not interrupted

    def _check_open(self) -> None:
        if self._stopping or not self._thread.is_alive():
            message = "the server is stopping"
            raise RequestError(message, code="stopping", headers=_RETRY, status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _run(self) -> None:
        scheduler = self.scheduler
        while not (self._stopping and scheduler.idle and self._actions.empty()):
            try:
                self._act(wait=scheduler.idle)
                if not scheduler.idle:
                    scheduler.step()
            except Exception as error:  # a fault of pardec: nobody may wait for ever
                log.exception("decoding failed")
                scheduler.close(error)

    def _act(self, *, wait: bool) -> None:
        """Runs the actions queued since the last forward; with `wait`, waits for one."""
        actions: list[Any] = [self._actions.get()] if wait else []
        while True:
            try:
                actions.append(self._actions.get_nowait())
            except Empty:
                break
        for action in actions:
            action()
