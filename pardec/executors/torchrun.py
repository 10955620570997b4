"""The processes that torchrun started, each with its own copy of the model.

A process that is free takes the next batch from a common counter, so that long batches and slow machines even out. If
a process dies, torchrun ends the others; what reached the rows file stays, and the same command makes the rest.
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

from .base import Job, Sink, failed, finished

# One process may decode for hours after another has nothing left to do; torchrun itself sees to those that die.
PATIENCE = timedelta(days=30)
_STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Torchrun:
    """Runs a share of the batches here and leaves the others to the other processes.

    Raises:
        SpecError: torchrun did not start this process, or started another number of them than `workers`.
    """

    def __init__(self, workers: int | None = None) -> None:
        missing = [name for name in _STARTED if name not in os.environ]
        if missing:
            raise SpecError(
                "the torchrun executor works under torchrun, which did not start this process",
                hint=f"torchrun --nproc-per-node {workers or 2} {_command()}",
            )
        started = int(os.environ["WORLD_SIZE"])
        if workers not in (None, started):
            raise SpecError(
                f"torchrun started {started} process{'es' * (started > 1)}, got workers={workers}",
                hint="leave workers out, or change torchrun's --nproc-per-node",
            )
        self._state = _joined()

    @property
    def leads(self) -> bool:
        return bool(self._state.is_main_process)

    @property
    def workers(self) -> int:
        return int(self._state.num_processes)

    def wait(self) -> None:
        self._state.wait_for_everyone()

    def run(self, job: Job, batches: Sequence[Sequence[Any]], sink: Sink) -> None:
        # What is left to do is read off the rows file, so nobody may write before everybody has read.
        counts = set(self._gather(sum(map(len, batches))))
        if len(counts) > 1:
            raise SpecError(
                f"the processes see different work, {' and '.join(map(str, sorted(counts)))} units",
                hint="every machine must see the same files: prompts, and the rows made so far",
            )
        if not batches:
            return
        worker, errors = job.worker(), list[str]()  # told at the end: torchrun would end the others with this process
        counter = self._counter()
        while (number := counter.add("next", 1) - 1) < len(batches):
            for rows in finished(worker, batches[number], errors):
                sink(rows)
        everywhere = [error for some in self._gather(errors) for error in some]
        if everywhere:
            raise failed(everywhere, len(batches), leads=self.leads)

    def _gather(self, value: Any) -> list[Any]:
        """The value of every process, in each; a point that all must reach."""
        import torch.distributed as dist

        values: list[Any] = [None] * self._state.num_processes
        dist.all_gather_object(values, value)
        return values

    def _counter(self) -> Any:
        """A store that counts for all processes of one run; the leader's process holds it."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and missing from its __all__

        host, leads = os.environ["MASTER_ADDR"], self.leads
        made = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE) if leads else None
        port = self._gather(made.port if made is not None else None)[0]
        return made or TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=PATIENCE)


def _command() -> str:
    """This program, as torchrun takes it."""
    name = Path(sys.argv[0])
    if name.name == "pardec" or name.parts[-2:] == ("pardec", "__main__.py"):
        return shlex.join(["-m", "pardec", *sys.argv[1:]])
    return shlex.join(sys.argv) if name.suffix == ".py" else "your_script.py"


def _joined() -> Any:
    """This process among the others; where there are GPUs, on the one of its number on this machine."""
    import torch
    from accelerate import PartialState

    from pardec.models.parallel.processes import destroy_group_at_exit, find_interface

    find_interface()
    gpu = torch.cuda.is_available()
    if not gpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes beside each other must not fight for the cores
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # The processes exchange counts and words, never tensors: gloo does that on every machine.
    state = PartialState(cpu=not gpu, backend="gloo", timeout=PATIENCE)
    destroy_group_at_exit()
    return state
