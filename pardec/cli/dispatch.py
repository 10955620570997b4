"""Batch generation by many workers: what each of them is told, and how rows come back into the file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import PardecError, SpecError

from ..executors import Executor, batches_per_stream
from ..executors.outline import load_without_weights
from ..executors.ray import Ray
from .batches import EVERY_S, Batches
from .common import say

if TYPE_CHECKING:
    from ..api import Model
    from ..requests.continuous import VectorCall
    from ..requests.text import Call


def check(name: str, output: Path | None, prompts: Path | None, *, given: bool, stream: bool) -> None:
    """Refuses a run without a rows file, prompts that only one process can read, and a canvas to be shown."""
    if output is None or output.suffix != ".jsonl":
        raise SpecError(f"the {name} executor keeps rows in a file", hint="add -o rows.jsonl")
    if stream:
        raise SpecError(f"--stream shows this process, and the {name} executor has others", hint="leave --stream out")
    if name == "torchrun" and not given and (prompts is None or str(prompts) == "-"):
        raise SpecError("standard input reaches one process of torchrun only", hint="name a file with --prompts")


def placed(crew: Executor, name: str, placing: dict[str, Any], *, quiet: bool) -> Model:
    """The model that this process reads prompts with: its own, or what the actors of Ray will load, without weights;
    `placing`, the arguments of `load`, then names their dtype."""
    from ..api import load

    if not isinstance(crew, Ray):
        model = load(name, **placing)
        say(model.network.describe(), quiet=quiet)
        return model
    model = load_without_weights(name, on_gpu=crew.gpus > 0, **placing)
    placing["dtype"] = str(model.network.dtype).removeprefix("torch.")
    say(f"{model.name} in {placing['dtype']}, loaded by Ray actors", quiet=quiet)
    return model


@dataclass(frozen=True)
class Generation:
    """The job: names and settings, and in the process that made it the model if that is loaded already."""

    model: str
    placing: dict[str, Any]  # arguments of `load`
    prompts: list[Any]
    arguments: dict[str, Any]  # of `generate`
    batch_size: int
    ready: tuple[Model, Call | VectorCall] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ready": None}

    def worker(self) -> Decoding:
        if self.ready is not None:
            return Decoding(*self.ready, self.batch_size)
        from ..api import load

        model = load(self.model, **self.placing)
        return Decoding(model, model.prepare(self.prompts, **self.arguments), self.batch_size)


@dataclass(frozen=True)
class Decoding:
    """The worker: a unit is the number of a prompt, its row names it as "at"."""

    model: Model
    call: Call | VectorCall
    batch_size: int

    def run(self, stream: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
        calls = (self.call.take([at]) for at in stream)
        with self.model.serve(calls, batch_size=self.batch_size) as serving:
            for served in serving:
                yield [{"at": stream[served.index], **served.result.rows()[0]}]


def keep_in(run: Batches, crew: Executor, output: Path, *, overwrite: bool) -> None:
    """The same as `Batches.keep_in`, where only one of many processes may start the file over."""
    if overwrite and crew.leads and output.is_file():
        output.unlink()
    crew.wait()
    run.keep_in(output, overwrite=False)


def deal(run: Batches, crew: Executor, job: Generation) -> None:
    """Makes the rows that are missing, by all workers; afterwards `run` has those of every process.

    Raises:
        BatchError: batches failed; the rows of the others are in the file.
        PardecError: rows that were made are no longer in the file.
    """
    if not isinstance(crew, Ray):
        job = replace(job, ready=(run.model, run.call))
    file = run.file
    assert file is not None, "workers meet in a file"
    todo = [at for at in range(len(run.items)) if at not in run.rows]
    # Rows of like length waste little on each other; the longest come first, so that no worker begins one at the end.
    todo.sort(key=lambda at: -run.call.lengths[at])
    size, batches = job.batch_size, -(-len(todo) // job.batch_size)
    size *= batches_per_stream(batches, crew.workers) if todo and size > 1 else 1
    streams = [todo[start : start + size] for start in range(0, len(todo), size)]
    last_shown = time.monotonic()
    others = file.count() - len(run.rows)  # the file may hold rows of prompts not asked for

    def sink(rows: list[dict[str, Any]]) -> None:
        nonlocal last_shown
        file.append([run.named(row.pop("at"), row) for row in rows])
        if time.monotonic() - last_shown > EVERY_S:
            say(f"{file.count() - others} of {len(run.items)} rows", quiet=run.quiet)
            last_shown = time.monotonic()

    started = time.perf_counter()
    try:
        crew.run(job, streams, sink)
    finally:
        run.seconds += time.perf_counter() - started
        if todo:
            file.append([])  # whoever deleted the file after the last row has not deleted the rows of this process
        held = file.read()
        for at in todo:
            if run.keys[at] in held:
                run.count(at, held[run.keys[at]])
    if lost := len(run.items) - len(run.rows):
        raise PardecError(f"{lost} rows are no longer in {file.path}", hint="the same command makes what is missing")
