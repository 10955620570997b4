"""Executors run units of work: in this process, in the processes started by torchrun, or in Ray actors.

A job knows how to load a model and run batches; an executor distributes the batches and passes finished rows to a sink.
Every executor gives the same rows, possibly in another order. An executor's batch may be a stream of several batches,
decoded by continuous batching (`batches_per_stream`).
"""

from __future__ import annotations

from pardec.models.errors import SpecError, did_you_mean

from .base import BatchError, Executor

__all__ = ["NAMES", "STREAM", "BatchError", "Executor", "batches_per_stream", "check_name", "executor"]

from ..requests.argument import check_whole

NAMES = ("local", "torchrun", "ray")

STREAM = 4  # most batches in a stream
_STREAMS_PER_WORKER = 3  # fewest streams for each of several workers


def executor(name: str = "local", *, workers: int | None = None) -> Executor:
    """The executor called `name`.

    Args:
        name: "local" (this process), "torchrun" (the processes that torchrun started), "ray" (Ray Data actors).
        workers: copies of the model; None uses the processes of torchrun, or one Ray actor per GPU.

    Raises:
        SpecError: an unknown executor, a wrong number of workers, or a missing dependency.
    """
    check_name(name)
    if workers is not None:
        check_whole("workers", workers, None, hint="leave it out for the default")
        if workers < 1:
            raise SpecError(f"workers must be at least 1, got {workers}", hint="leave it out for the default")
    if name == "local":
        from .base import Local

        return Local(workers)
    if name == "torchrun":
        from .torchrun import Torchrun

        return Torchrun(workers)
    from .ray import Ray

    return Ray(workers)


def check_name(name: str) -> None:
    """Raises SpecError for an unknown executor."""
    if name not in NAMES:
        raise SpecError(
            f"unknown executor {name!r}{did_you_mean(str(name), NAMES)}", hint=f"the executors are {', '.join(NAMES)}"
        )


def batches_per_stream(batches: int, workers: int) -> int:
    """The number of batches per stream that leaves enough streams for all workers.

    >>> batches_per_stream(40, 1), batches_per_stream(40, 2), batches_per_stream(40, 8), batches_per_stream(4, 8)
    (4, 4, 1, 1)
    """
    return STREAM if workers == 1 else max(1, min(STREAM, batches // (_STREAMS_PER_WORKER * workers)))
