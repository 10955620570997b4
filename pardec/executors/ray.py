"""Runs batches in actors of a Ray cluster (or of this machine if no cluster is named), each with a copy of the model.

Ray Data distributes the batches and returns the rows of a batch to this process when the whole batch is finished. An
actor that dies is restarted and its batch retried; a batch that kills its actor every time is given up, and the others
continue.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from pardec.models.errors import PardecError, SpecError, install

from .base import BatchError, Job, Sink, batch_error, describe_error, run_batch

MAX_ATTEMPTS = 3  # attempts to run a batch whose actor dies
CPU_WORKERS = 2  # without a GPU


class Ray:
    """Runs batches in Ray Data actors, one per GPU.

    RAY_ADDRESS names the cluster; without it, this process connects to a running cluster of this machine, or starts
    one until it ends.

    Raises:
        SpecError: Ray is not installed.
    """

    leads = True

    def __init__(self, workers: int | None = None) -> None:
        if find_spec("ray") is None or find_spec("pyarrow") is None:
            raise SpecError("the ray executor needs Ray Data, which is not installed", hint=install("ray"))
        self._requested = workers

    def wait(self) -> None:
        """The actors exist only during `run`."""

    @property
    def workers(self) -> int:
        return self._requested or self.gpus or CPU_WORKERS

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster; connects to it or starts it."""
        _connect()
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        if not batches:
            return
        on_gpu = self.gpus > 0
        workers = min(self.workers, len(batches))
        import ray.data
        from ray import cloudpickle  # also pickles definitions of scripts and notebooks

        # One block per batch: a block is the unit of retrying and of returning results.
        attempts = ray.remote(num_cpus=0)(AttemptCounter).remote()
        items = [{"number": number, "batch": cloudpickle.dumps(batch)} for number, batch in enumerate(batches)]
        received: set[int] = set()
        errors: list[str] = []
        with _quiet_context():
            rows = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                Actor,
                fn_constructor_args=(job, attempts),
                # One task at a time: a task queued at an actor that dies would lose an attempt.
                compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
                batch_size=1,
                num_gpus=1 if on_gpu else 0,
                num_cpus=_cpus(workers),
            )
            for row in rows.iter_rows():
                message = json.loads(row["message"])
                received.add(row["number"])
                if "broken" in message:
                    raise BatchError(message["broken"], hint=message["hint"])
                errors += message["errors"]
                if message["rows"]:
                    sink(message["rows"])
        lost = len(batches) - len(received)
        errors += ["Ray lost the batch"] * lost
        if errors:
            raise batch_error(errors, len(batches))


class AttemptCounter:
    """A separate actor that survives the others and counts the attempts at each batch: Ray Data retries for ever."""

    def __init__(self) -> None:
        self._attempts: Counter[int] = Counter()

    def begin(self, number: int) -> bool:
        """Counts an attempt; False if there were too many."""
        self._attempts[number] += 1
        return self._attempts[number] <= MAX_ATTEMPTS


class Actor:
    """The worker that Ray Data creates in each process. Returns errors as text: not every exception can be pickled."""

    def __init__(self, job: Job, attempts: Any) -> None:
        self._attempts = attempts
        self._startup_error: dict[str, Any] | None = None
        try:
            self._worker = job.worker()
        except Exception as error:  # raised here, it would be retried in every new actor
            known = isinstance(error, PardecError)
            self._startup_error = {
                "broken": str(error) if known else f"an actor could not start: {describe_error(error)}",
                "hint": getattr(error, "hint", None),
            }

    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Runs one batch: `columns` are Ray Data's, with one entry each."""
        number = int(columns["number"][0])
        message = self._startup_error or self._run_batch(number, columns["batch"][0])
        return {"number": [number], "message": [json.dumps(message)]}

    def _run_batch(self, number: int, batch: bytes) -> dict[str, Any]:
        import ray

        if not ray.get(self._attempts.begin.remote(number)):
            return {"rows": [], "errors": [f"each of {MAX_ATTEMPTS} actors died on the batch"]}
        errors: list[str] = []
        rows = [row for rows in run_batch(self._worker, pickle.loads(batch), errors) for row in rows]
        return {"rows": rows, "errors": errors}


def _connect() -> None:
    """Connects to the cluster, or starts a private one on this machine; without output or usage reports."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        # Ray reports dead actors on stdout, even without log_to_driver; stdout is for results, and there is no public
        # setting.
        setattr(ray._private.worker, "_worker_logs_enabled", False)  # noqa: B010


def _cpus(workers: int) -> float:
    """Cores per actor: one, or less if the machine has fewer cores than actors, since the last would never start."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    cores = ray.cluster_resources().get("CPU", 0.0)
    return min(1.0, cores / workers) if len(nodes) == 1 else 1.0


@contextmanager
def _quiet_context() -> Iterator[None]:
    """Configures Ray Data: no progress bars and reports, continue after a lost batch, no timeout."""
    from ray.data import DataContext

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it prints the traceback of every lost batch
    context = DataContext.get_current()
    settings = {
        "enable_progress_bars": False,
        "print_on_execution_start": False,
        "max_errored_blocks": -1,
        "execution_no_progress_timeout_s": -1,
    }
    previous = {name: getattr(context, name) for name in settings if hasattr(context, name)}
    try:
        for name in previous:
            setattr(context, name, settings[name])
        yield
    finally:
        for name, value in previous.items():
            setattr(context, name, value)
