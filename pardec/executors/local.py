"""Runs all batches in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pardec.models.errors import SpecError

from .base import Job, Sink, batch_error, run_batch


class Local:
    """Runs every batch in this process, in order."""

    leads = True
    workers = 1

    def __init__(self, workers: int | None = None) -> None:
        if workers not in (None, 1):
            raise SpecError(
                f"the local executor has one worker, got workers={workers}",
                hint='for more, use executor="torchrun" or "ray"',
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
