"""All work in this process, batch after batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pardec.models.errors import SpecError

from .base import Job, Sink, failed, finished


class Local:
    """Runs every batch here, in order."""

    leads = True
    workers = 1

    def __init__(self, workers: int | None = None) -> None:
        if workers not in (None, 1):
            raise SpecError(
                f"the local executor is one worker, got workers={workers}",
                hint='more take executor="torchrun" or "ray"',
            )

    def wait(self) -> None:
        """Nobody else is to come."""

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        if not batches:
            return
        worker = job.worker()
        errors: list[str] = []
        for batch in batches:
            for rows in finished(worker, batch, errors):
                sink(rows)
        if errors:
            raise failed(errors, len(batches))
