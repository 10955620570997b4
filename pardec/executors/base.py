"""What executors share: the contract of jobs and workers, and how batches that fail are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from pardec.models.errors import PardecError

Rows = list[dict[str, Any]]
Sink = Callable[[Rows], None]  # takes finished rows, and keeps them before it returns


class Worker(Protocol):
    """What a process builds once: it has the model."""

    def run(self, batch: Sequence[Any]) -> Iterable[Rows]:
        """One row of plain JSON values a unit, told as they are finished."""
        ...


class Job(Protocol):
    """Names and settings of a run, picklable; it holds no tensors."""

    def worker(self) -> Worker:
        """Called once a process: loads the model."""
        ...


class Executor(Protocol):
    """Deals batches out to workers."""

    @property
    def leads(self) -> bool:
        """Whether this process prints, and writes what is written once."""
        ...

    @property
    def workers(self) -> int:
        """Copies of the model."""
        ...

    def wait(self) -> None:
        """Returns when every process of the run has come here; at once where there is one."""
        ...

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        """Runs every batch once and returns, in every process, when all are done.

        Args:
            job: makes the worker of each process.
            batches: the same list in every process, the units of each run together.
            sink: called with rows as they are finished, in a process that may write to the run's file, never twice at
                the same time in one process.

        Raises:
            BatchError: at the end, when a batch could not be run; all rows that were finished have gone to the sink.
            Exception: at once, what `job.worker()` or the sink raises.
        """
        ...


class BatchError(PardecError):
    """Some batches of a run could not be run; where all processes raise it, the leader's is to be told."""

    def __init__(self, message: str, hint: str | None = None, *, leads: bool = True) -> None:
        super().__init__(message, hint)
        self.leads = leads


def finished(worker: Worker, batch: Sequence[Any], errors: list[str]) -> Iterator[Rows]:
    """The rows of a batch as they are finished; an error that ends it joins the others, to be told at the end."""
    try:
        yield from worker.run(batch)
    except Exception as error:
        errors.append(described(error))


def failed(errors: Sequence[str], batches: int, *, leads: bool = True) -> BatchError:
    """What is raised after a run whose batches failed with `errors`."""
    plural = "" if batches == 1 else "es"
    return BatchError(
        f"{len(errors)} of {batches} batch{plural} could not be run; the first: {errors[0]}",
        hint="the rows of the others are kept; the same command makes what is missing",
        leads=leads,
    )


def described(error: BaseException) -> str:
    """An error as rows and reports tell it."""
    return f"{type(error).__name__}: {error}"
