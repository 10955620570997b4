"""Where units of work are done: in this process, in the processes that torchrun started, or in Ray actors.

A job knows how to load a model and run batches; an executor deals the batches out and hands finished rows to a sink.
The same batches give the same rows through each, in another order. What is dealt may be a stream, several batches that
flow through one (`together`).
"""

from __future__ import annotations

from pardec.models.errors import SpecError, did_you_mean

from .base import BatchError, Executor, described

__all__ = ["NAMES", "STREAM", "BatchError", "Executor", "check_name", "described", "executor", "together"]

from ..requests.settings import check_whole

NAMES = ("local", "torchrun", "ray")

STREAM = 4  # batches that flow through one, where there is work for all
_TURNS = 3  # streams that each of several workers should find


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
        from .local import Local

        return Local(workers)
    if name == "torchrun":
        from .torchrun import Torchrun

        return Torchrun(workers)
    from .ray import Ray

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
