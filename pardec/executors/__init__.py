"""Where units of work are done: in this process, in the processes that torchrun started, or in Ray actors.

A job knows how to load a model and run batches; an executor deals the batches out and hands finished rows to a sink.
The same batches give the same rows through each, in another order. What is dealt may be a stream, several batches that
flow through one (`together`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from pardec.models.errors import PardecError, SpecError, did_you_mean
from pardec.settings import check_whole

NAMES = ("local", "torchrun", "ray")

STREAM = 4  # batches that flow through one, where there is work for all
_TURNS = 3  # streams that each of several workers should find

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


def executor(name: str = "local", *, workers: int | None = None) -> Executor:
    """The executor called `name`.

    Args:
        name: "local" (this process), "torchrun" (the processes that torchrun started), "ray" (Ray Data actors).
        workers: copies of the model; None takes what there is: the processes of torchrun, or one Ray actor a GPU.

    Raises:
        SpecError: no such executor, not that many workers, or what it needs is missing; the hint says what would work.
    """
    check_name(name)
    if workers is not None:
        check_whole("workers", workers, None, hint="leave it out to take what there is")
        if workers < 1:
            raise SpecError(f"workers must be at least 1, got {workers}", hint="leave it out to take what there is")
    if name == "local":
        from pardec.executors.local import Local

        return Local(workers)
    if name == "torchrun":
        from pardec.executors.torchrun import Torchrun

        return Torchrun(workers)
    from pardec.executors.ray import Ray

    return Ray(workers)


def check_name(name: str) -> None:
    """Refuses an executor that there is not."""
    if name not in NAMES:
        raise SpecError(
            f"unknown executor {name!r}{did_you_mean(str(name), NAMES)}", hint=f"the executors are {', '.join(NAMES)}"
        )


def together(batches: int, workers: int) -> int:
    """How many of the batches one worker best takes as a stream, so that none is left without work.

    >>> together(40, 1), together(40, 2), together(40, 8), together(4, 8)
    (4, 4, 1, 1)
    """
    return STREAM if workers == 1 else max(1, min(STREAM, batches // (_TURNS * workers)))


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
