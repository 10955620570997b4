"""The contracts of executors, jobs and workers, and the error for batches that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from pardec.models.errors import PardecError, SpecError

Rows = list[dict[str, Any]]
Sink = Callable[[Rows], None]  # stores finished rows before it returns


class Worker(Protocol):
    """Runs batches in one process; holds the model."""

    def run(self, batch: Sequence[Any]) -> Iterable[Rows]:
        """Yields one row of plain JSON values per unit, as the units finish."""
        ...


class Job(Protocol):
    """The settings of a run; picklable, without tensors."""

    def worker(self) -> Worker:
        """Loads the model; called once per process."""
        ...


class Executor(Protocol):
    """Distributes batches to workers."""

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes the files of the run."""
        ...

    @property
    def workers(self) -> int:
        """The number of copies of the model."""
        ...

    def wait(self) -> None:
        """A barrier: returns when every process of the run has called it."""
        ...

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        """Runs every batch once and returns, in every process, when all are done.

        Args:
            job: creates the worker of each process.
            batches: the same list in every process; the units of a batch run together.
            sink: called with finished rows, in a process that may write to the run's file; never concurrently within a
                process.

        Raises:
            BatchError: at the end, if a batch could not be run; all finished rows have gone to the sink.
            Exception: immediately, whatever `job.worker()` or the sink raises.
        """
        ...


class BatchError(PardecError):
    """Some batches of a run could not be run; if all processes raise it, only the leader should print it."""

    def __init__(self, message: str, hint: str | None = None, *, leads: bool = True) -> None:
        super().__init__(message, hint)
        self.leads = leads


def run_batch(worker: Worker, batch: Sequence[Any], errors: list[str]) -> Iterator[Rows]:
    """Yields the rows of a batch as they finish; an exception that ends it is appended to `errors`."""
    try:
        yield from worker.run(batch)
    except Exception as error:
        errors.append(describe_error(error))


def batch_error(errors: Sequence[str], batches: int, *, leads: bool = True) -> BatchError:
    """The exception for a run whose batches failed with `errors`."""
    plural = "" if batches == 1 else "es"
    return BatchError(
        f"{len(errors)} of {batches} batch{plural} could not be run; the first: {errors[0]}",
        hint="the rows of the other batches are saved; run the same command again for the missing ones",
        leads=leads,
    )


def describe_error(error: BaseException) -> str:
    """An exception as text, for rows and reports."""
    return f"{type(error).__name__}: {error}"


class Local:
    """Runs every batch in this process, in order."""

    leads = True
    workers = 1

    def __init__(self, workers: int | None = None) -> None:
        if workers not in (None, 1):
            raise SpecError(
                f"the local executor has one worker, got workers={workers}",
                hint='for more, use executor="torchrun" or executor="ray"',
            )

    def wait(self) -> None:
        """Returns at once: there is no other process."""

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        if not batches:
            return
        worker = job.worker()
        errors: list[str] = []
        for batch in batches:
            for rows in run_batch(worker, batch, errors):
                sink(rows)
        if errors:
            raise batch_error(errors, len(batches))
