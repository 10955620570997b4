"""Decodes requests of any kind at once: rows of one kind share a batch, and batches take turns of equal time.

Rows are of one kind where the loop can decode them together: the same sampler, temperature, filters and so on. A row
enters the running batch of its kind before the next forward, or begins one, as long as a slot is free. Where a batch
takes no further rows, those of its kind wait until it is done; all others go on. A row's tokens are those of `generate`
alone with its seed, whatever else is decoded.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pardec.models.parallel.threads import using
from pardec.samplers.traits import Trait

from ..memory import memory_errors
from ..result import Result
from .rows import QueuedRow
from .running import Ended, Progress, RunningBatch

if TYPE_CHECKING:
    from ..engine import Engine

Kind = tuple[Any, ...]

_LAG = 5.0  # a batch is at most this many seconds ahead of another one


class Listener(Protocol):
    """Receives the events of a row. Its methods are called between forwards and must not block."""

    wants_progress: bool

    def started(self, waited: str | None) -> None:
        """The row is in a batch; `waited` says why it had to wait for another batch to end, None if it did not wait."""

    def advanced(self, progress: Progress) -> None:
        """Called after each forward of the row except the last, if `wants_progress`; the arrays belong to the loop."""

    def finished(self, result: Result) -> None:
        """The row is finished; its result has one row."""

    def failed(self, error: Exception) -> None:
        """The row was given up."""


@dataclass(eq=False, slots=True)
class Job:
    """A row to decode."""

    row: QueuedRow
    listener: Listener
    owner: object = None  # the request that it belongs to; None: it is a request by itself
    client: str = ""  # who sent the request
    waited: str | None = None
    kind: Kind = field(init=False)
    alone: bool = False  # to be decoded alone, after a failed batch
    followed: bool = False  # the listener has seen some of its tokens

    def __post_init__(self) -> None:
        self.kind = (str(self.row.call.sampler.spec), *self.row.kind)
        self.owner = self if self.owner is None else self.owner

    @property
    def restartable(self) -> bool:
        """Whether it may begin again: a sampler that reads the clock would draw other tokens than its listener saw."""
        if not self.followed or Trait.TIMES_ROUNDS not in self.row.call.sampler.traits:
            return True
        return bool(self.row.request.temperature == 0)

    def separate(self) -> None:
        """From now on the row is decoded alone."""
        self.alone, self.kind = True, (*self.kind, id(self))


class Scheduler:
    """Schedules the batches of one model; not thread-safe.

    Attributes:
        slots: rows decoded at once, over all batches.
        waiting: jobs without a slot, in the order in which they came.
        forwards: of all batches so far.
    """

    def __init__(self, model: Engine, slots: int) -> None:
        self.model, self.slots = model, slots
        self.waiting: deque[Job] = deque()
        self.forwards = 0
        self._batches: dict[Kind, RunningBatch] = {}
        self._spent: dict[Kind, float] = {}  # seconds of each batch, which starts at the seconds of the others
        self._jobs: dict[QueuedRow, Job] = {}  # jobs of the rows in batches

    @property
    def live(self) -> int:
        """Rows in batches."""
        return len(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to decode."""
        return not self._jobs and not self.waiting

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues jobs."""
        self.waiting.extend(jobs)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs: no further forward includes them. Jobs that are over already are ignored."""
        gone = {id(job) for job in jobs}
        self.waiting = deque(job for job in self.waiting if id(job) not in gone)
        for job in jobs:
            if self._jobs.pop(job.row, None) is not None:
                self._batches[job.kind].drop([job.row])
        self._remove_empty()

    def step(self) -> None:
        """Gives free slots to waiting jobs, then runs one forward of the batch that has had the least time."""
        self._admit()
        for kind in sorted(self._batches, key=lambda kind: self._spent[kind])[:1]:
            batch, since = self._batches[kind], time.perf_counter()
            before = batch.cost.forwards
            try:
                with self._guard(batch.live):
                    ended = batch.advance()
            except Exception as error:
                self._break_up(kind, error)
                continue
            finally:
                self.forwards += batch.cost.forwards - before
                if kind in self._spent:
                    self._charge(kind, time.perf_counter() - since)
            self._report(ended)
            if self._watched(batch):
                self._report_progress(batch)
        self._remove_empty()

    def _charge(self, kind: Kind, seconds: float) -> None:
        """Adds the time of a forward to a batch.

        A forward during which the process stood still, or that loaded a drafter, does not keep its rows waiting for as
        long as each other batch needs to catch up.
        """
        least = min((spent for other, spent in self._spent.items() if other != kind), default=float("inf"))
        self._spent[kind] = min(self._spent[kind] + seconds, max(self._spent[kind], least + _LAG))

    def close(self, error: Exception) -> None:
        """Gives up all jobs."""
        for kind in list(self._batches):
            self._give_up(kind, error)
        while self.waiting:
            self.waiting.popleft().listener.failed(error)

    # --- slots ---

    def _admit(self) -> None:
        """Gives free slots to waiting jobs, except jobs whose batch takes no rows.

        The client that has the fewest rows in batches comes first, then the request that has the fewest.
        """
        clients = Counter(job.client for job in self._jobs.values())
        owners = Counter(id(job.owner) for job in self._jobs.values())
        ready = [job for job in self.waiting if self._can_begin(job)]
        groups: dict[Kind, list[Job]] = {}
        chosen: set[int] = set()
        while ready:
            job = min(ready, key=lambda job: (clients[job.client], owners[id(job.owner)]))  # ties: the first
            if self.slots - self.live - len(chosen) <= 0 and not self._make_room(job, clients, owners):
                break
            ready.remove(job)
            groups.setdefault(job.kind, []).append(job)
            chosen.add(id(job))
            clients[job.client] += 1
            owners[id(job.owner)] += 1
        self.waiting = deque(job for job in self.waiting if id(job) not in chosen)
        for job in self.waiting:
            batch = self._batches.get(job.kind)
            if batch is not None and batch.waits is not None:
                job.waited = batch.waits
        for kind, jobs in groups.items():
            self._begin(kind, jobs)

    def _can_begin(self, job: Job) -> bool:
        batch = self._batches.get(job.kind)
        return batch is None or batch.joinable

    def _make_room(self, job: Job, clients: Counter[str], owners: Counter[int]) -> bool:
        """Takes a slot from a request (or client) with several, for a request (or client) without one.

        The row that loses it begins again later, with the same tokens.
        """
        if owners[id(job.owner)]:
            return False
        new = not clients[job.client]
        others = [
            (owners[id(other.owner)], not other.listener.wants_progress, at, other)
            for at, other in enumerate(self._jobs.values())
            if (batch := self._batches.get(other.kind)) is not None
            and batch.gives_slots
            and other.restartable
            and (owners[id(other.owner)] > 1 or (new and clients[other.client] > 1))
        ]
        if not others:
            return False
        victim = max(others, key=lambda each: each[:3])[3]  # the newest row: little is lost
        del self._jobs[victim.row]
        self._batches[victim.kind].drop([victim.row])
        self.waiting.appendleft(victim)
        clients[victim.client] -= 1
        owners[id(victim.owner)] -= 1
        return True

    def _begin(self, kind: Kind, jobs: list[Job]) -> None:
        """Puts jobs of one kind into its batch, or into a new one."""
        rows, batch = [job.row for job in jobs], self._batches.get(kind)
        self._jobs.update(zip(rows, jobs, strict=True))
        for job in jobs:
            if not job.alone:
                job.listener.started(job.waited)
        try:
            with self._guard(rows):
                if batch is None:
                    least = min((self._spent[each] for each in self._batches), default=0.0)
                    self._batches[kind], self._spent[kind] = self.model.driver.batch(self.model, rows), least
                else:
                    before = batch.cost.forwards
                    self._report(batch.join(rows))
                    self.forwards += batch.cost.forwards - before
        except Exception as error:
            if batch is not None and batch.intact:
                self._retry(rows, error)
            else:
                self._break_up(kind, error)

    def _remove_empty(self) -> None:
        for kind, batch in list(self._batches.items()):
            if not batch.live:
                self._spent.pop(kind, None)
                self._batches.pop(kind).close()

    @contextmanager
    def _guard(self, rows: Sequence[QueuedRow]) -> Iterator[None]:
        """Turns memory errors into OutOfMemory with the batch's size, and sets the number of threads."""
        with memory_errors(f"{len(rows)} rows", "ask for fewer tokens"), using(self.model.set_threads):
            yield

    # --- ends ---

    def _watched(self, batch: RunningBatch) -> bool:
        return any(self._jobs[row].listener.wants_progress for row in batch.live)

    def _report(self, ended: Ended) -> None:
        for row, result in ended:
            if (job := self._jobs.pop(row, None)) is not None:
                job.listener.finished(result)

    def _report_progress(self, batch: RunningBatch) -> None:
        for row, progress in list(batch.progress()):
            job = self._jobs[row]
            if job.listener.wants_progress:
                try:
                    job.followed = True
                    job.listener.advanced(progress)
                except Exception as error:  # the listener's own
                    self.cancel([job])
                    job.listener.failed(error)

    def _give_up(self, kind: Kind, error: Exception) -> None:
        """Fails every row of a batch and frees it."""
        batch = self._batches.pop(kind, None)
        self._spent.pop(kind, None)
        if batch is not None:
            self._fail(batch.live, error)
            batch.close()

    def _break_up(self, kind: Kind, error: Exception) -> None:
        """Ends a batch that failed; its rows, and the rows that were to join it, are decoded again one by one."""
        batch = self._batches.pop(kind, None)
        if batch is not None:
            batch.close()
        self._retry([row for row, job in self._jobs.items() if job.kind == kind], error)

    def _retry(self, rows: Sequence[QueuedRow], error: Exception) -> None:
        """Queues the rows of a failed batch again, each alone, so that only the faulty row fails.

        A row that was decoded alone already has failed, and so have all where weights were replaced.
        """
        jobs = [job for row in rows if (job := self._jobs.get(row)) is not None]
        current = self.model.network.weights_version
        again = [job for job in jobs if not job.alone and len(rows) > 1 and job.row.call.weights_version == current]
        again = [job for job in again if job.restartable]
        for job in again:
            del self._jobs[job.row]
            job.separate()
        self.waiting.extendleft(reversed(again))
        self._fail([job.row for job in jobs if job not in again], error)

    def _fail(self, rows: Sequence[QueuedRow], error: Exception) -> None:
        for row in rows:
            if (job := self._jobs.pop(row, None)) is not None:
                job.listener.failed(error)
