"""Runs batches in the processes that torchrun started, each with its own copy of the model.

An idle process takes the next batch from a shared counter, which balances long batches and slow machines. If a process
dies, torchrun ends the others; rows in the rows file remain, and the same command continues the run.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError

from .base import Job, Sink, batch_error, run_batch

# A process may decode for hours after another has finished; torchrun itself handles processes that die.
TIMEOUT = timedelta(days=30)
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Torchrun:
    """Runs a share of the batches in this process; the other processes run the rest.

    Raises:
        SpecError: torchrun did not start this process, or started a number of processes other than `workers`.
    """

    def __init__(self, workers: int | None = None) -> None:
        missing = [name for name in _ENVIRONMENT if name not in os.environ]
        if missing:
            raise SpecError(
                "the torchrun executor works under torchrun, which did not start this process",
                hint=f"run torchrun --nproc-per-node {workers or 2} {_command()}",
            )
        processes = int(os.environ["WORLD_SIZE"])
        if workers not in (None, processes):
            raise SpecError(
                f"torchrun started {processes} process{'es' * (processes > 1)}, got workers={workers}",
                hint="leave workers out, or change torchrun's --nproc-per-node",
            )
        self._state = _process_state()

    @property
    def leads(self) -> bool:
        return bool(self._state.is_main_process)

    @property
    def workers(self) -> int:
        return int(self._state.num_processes)

    def wait(self) -> None:
        self._state.wait_for_everyone()

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        # The remaining work follows from the rows file, so no process may write before all have read it.
        counts = set(self._gather(sum(map(len, batches))))
        if len(counts) > 1:
            raise SpecError(
                f"the processes found different work to do, {' and '.join(map(str, sorted(counts)))} units",
                hint="every machine must see the same files: prompts, and the finished rows",
            )
        if not batches:
            return
        worker, errors = job.worker(), list[str]()  # raised at the end: torchrun would end the other processes too
        counter = self._counter()
        while (number := counter.add("next", 1) - 1) < len(batches):
            for rows in run_batch(worker, batches[number], errors):
                sink(rows)
        all_errors = [error for process_errors in self._gather(errors) for error in process_errors]
        if all_errors:
            raise batch_error(all_errors, len(batches), leads=self.leads)

    def _gather(self, value: Any) -> list[Any]:
        """Gathers the values of all processes in each process; a barrier."""
        import torch.distributed as dist

        values: list[Any] = [None] * self._state.num_processes
        dist.all_gather_object(values, value)
        return values

    def _counter(self) -> Any:
        """A counter shared by all processes of a run; the leader's process hosts it."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and missing from its __all__

        host, leads = os.environ["MASTER_ADDR"], self.leads
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT) if leads else None
        port = self._gather(store.port if store is not None else None)[0]
        return store or TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def _command() -> str:
    """This program's command line in the form that torchrun takes."""
    name = Path(sys.argv[0])
    if name.name == "pardec" or name.parts[-2:] == ("pardec", "__main__.py"):
        return shlex.join(["-m", "pardec", *sys.argv[1:]])
    return shlex.join(sys.argv) if name.suffix == ".py" else "your_script.py"


def _process_state() -> Any:
    """The state of this process in the group; with GPUs, each process uses the one of its local rank."""
    import torch
    from accelerate import PartialState

    from pardec.models.parallel.tensor_parallel import destroy_group_at_exit, find_interface

    find_interface()
    gpu = torch.cuda.is_available()
    if not gpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes must not compete for the cores
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # The processes exchange counts and text, never tensors: gloo is available on every machine.
    state = PartialState(cpu=not gpu, backend="gloo", timeout=TIMEOUT)
    destroy_group_at_exit()
    return state
