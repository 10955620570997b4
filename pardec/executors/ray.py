"""Actors of a Ray cluster, or of this machine where no cluster is named, each with its own copy of the model.

Ray Data hands the batches out and brings the rows of each back to this process when all of them are finished. An actor
that dies is started again and its batch tried again; a batch that kills its actor every time is given up, and the
others go on.
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

from .base import BatchError, Job, Sink, described, failed, finished

TRIES = 3  # of a batch whose actor dies
CPU_WORKERS = 2  # where there is no GPU


class Ray:
    """Runs batches in Ray Data actors, one a GPU.

    RAY_ADDRESS names the cluster; without it a running one of this machine is joined, or one started, until this
    process ends.

    Raises:
        SpecError: Ray is not installed.
    """

    leads = True

    def __init__(self, workers: int | None = None) -> None:
        if find_spec("ray") is None or find_spec("pyarrow") is None:
            raise SpecError("the ray executor needs Ray Data, which is not installed", hint=install("ray"))
        self._asked = workers

    def wait(self) -> None:
        """The actors work only while `run` does."""

    @property
    def workers(self) -> int:
        return self._asked or self.gpus or CPU_WORKERS

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster; joins or starts it."""
        _join()
        import ray

        return int(ray.cluster_resources().get("GPU", 0))

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        if not batches:
            return
        on_gpu = self.gpus > 0
        workers = min(self.workers, len(batches))
        import ray.data
        from ray import cloudpickle  # takes what a script or a notebook defines, too

        # One block a batch: a block is what is tried again, and what comes back as soon as it is finished.
        tries = ray.remote(num_cpus=0)(Tries).remote()
        items = [{"number": number, "batch": cloudpickle.dumps(batch)} for number, batch in enumerate(batches)]
        done: set[int] = set()
        errors: list[str] = []
        with _quiet_context():
            rows = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                Actor,
                fn_constructor_args=(job, tries),
                # One task at a time: what waits at an actor that dies would lose a try with it.
                compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
                batch_size=1,
                num_gpus=1 if on_gpu else 0,
                num_cpus=_cpus(workers),
            )
            for answer in rows.iter_rows():
                message = json.loads(answer["told"])
                done.add(answer["number"])
                if "broken" in message:
                    raise BatchError(message["broken"], hint=message["hint"])
                errors += message["errors"]
                if message["rows"]:
                    sink(message["rows"])
        lost = len(batches) - len(done)
        errors += ["Ray lost it"] * lost
        if errors:
            raise failed(errors, len(batches))


class Tries:
    """An actor of its own that outlives the others: how often each batch was begun, since Ray Data retries for ever."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> bool:
        """Whether the batch may be tried once more."""
        self._begun[number] += 1
        return self._begun[number] <= TRIES


class Actor:
    """What Ray Data builds in each process. Errors travel as words: not every error can be pickled."""

    def __init__(self, job: Job, tries: Any) -> None:
        self._tries = tries
        self._broken: dict[str, Any] | None = None
        try:
            self._worker = job.worker()
        except Exception as error:  # raised here, it would be tried again in every new actor
            ours = isinstance(error, PardecError)
            self._broken = {
                "broken": str(error) if ours else f"an actor could not start: {described(error)}",
                "hint": getattr(error, "hint", None),
            }

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        """One batch: `given` has Ray Data's columns, of one entry each."""
        number = int(given["number"][0])
        message = self._broken or self._run_batch(number, given["batch"][0])
        return {"number": [number], "told": [json.dumps(message)]}

    def _run_batch(self, number: int, batch: bytes) -> dict[str, Any]:
        import ray

        if not ray.get(self._tries.begin.remote(number)):
            return {"rows": [], "errors": [f"each of {TRIES} actors died of it"]}
        errors: list[str] = []
        made = [row for rows in finished(self._worker, pickle.loads(batch), errors) for row in rows]
        return {"rows": made, "errors": errors}


def _join() -> None:
    """Joins the cluster, or starts one of this machine that is just for this process; nothing is said or reported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        # Ray tells of dead actors on stdout, whatever log_to_driver says; stdout is for results, and nothing public
        # stops it.
        setattr(ray._private.worker, "_worker_logs_enabled", False)  # noqa: B010


def _cpus(workers: int) -> float:
    """Cores an actor reserves: one, or its share of a machine that has fewer, where the last would never start."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    cores = ray.cluster_resources().get("CPU", 0.0)
    return min(1.0, cores / workers) if len(nodes) == 1 else 1.0


@contextmanager
def _quiet_context() -> Iterator[None]:
    """Ray Data without bars and reports, that lets the other batches go on when one is lost, and never hurries."""
    from ray.data import DataContext

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it prints the traceback of every lost batch
    context = DataContext.get_current()
    ours = {
        "enable_progress_bars": False,
        "print_on_execution_start": False,
        "max_errored_blocks": -1,
        "execution_no_progress_timeout_s": -1,
    }
    before = {name: getattr(context, name) for name in ours if hasattr(context, name)}
    try:
        for name in before:
            setattr(context, name, ours[name])
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
