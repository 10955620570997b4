"""Batch generation by several workers: their job, and how their rows reach the file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import PardecError, SpecError

from ..executors import Executor, batches_per_stream
from ..executors.outline import load_without_weights
from ..executors.ray import Ray
from ..io.prompt_files import Item
from ..requests import line_calls
from ..requests.line_calls import LineCalls
from .batches import EVERY_S, Batches
from .common import say

if TYPE_CHECKING:
    from ..api import Model
    from ..requests.call import Call


def check(name: str, output: Path | None, prompts: Path | None, *, has_prompt: bool, stream: bool) -> None:
    """Refuses a run without a .jsonl file, prompts that only one process can read, and --stream."""
    if output is None or output.suffix != ".jsonl":
        raise SpecError(f"the {name} executor writes rows to a .jsonl file", hint="add -o rows.jsonl")
    if stream:
        raise SpecError(f"--stream cannot show the processes that {name} decodes in", hint="leave --stream out")
    if name == "torchrun" and not has_prompt and (prompts is None or str(prompts) == "-"):
        raise SpecError("only one process of torchrun can read standard input", hint="name a file with --prompts")


def load_model(executor: Executor, name: str, load_arguments: dict[str, Any], *, quiet: bool) -> Model:
    """Loads the model that prepares prompts in this process, for Ray without its weights.

    To `load_arguments`, the arguments of `load`, are added the dtype of a model without weights, and whether it is
    packed, so that workers on other machines load the same.
    """
    from ..api import load

    if not isinstance(executor, Ray):
        model = load(name, **load_arguments)
        say(model.network.describe(), quiet=quiet)
        return model
    model = load_without_weights(name, on_gpu=executor.gpus > 0, **load_arguments)
    load_arguments["dtype"] = str(model.network.dtype).removeprefix("torch.")
    if model.weight_settings.get("packed"):  # by default a named dtype is that of plain weights
        load_arguments["packed"] = True
    say(f"{model.name} in {load_arguments['dtype']}, loaded by Ray actors", quiet=quiet)
    return model


@dataclass(frozen=True)
class Generation:
    """The job of the workers: names and settings, and the model if this process has loaded it."""

    model: str
    load_arguments: dict[str, Any]  # arguments of `load`
    items: list[Item]
    arguments: dict[str, Any]  # arguments of `generate`
    batch_size: int
    loaded: tuple[Model, Call | LineCalls] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "loaded": None}

    def worker(self) -> Decoding:
        if self.loaded is not None:
            return Decoding(*self.loaded, self.batch_size)
        from ..api import load

        model = load(self.model, **self.load_arguments)
        return Decoding(model, line_calls.prepare(model, self.items, self.arguments, "prompts"), self.batch_size)


@dataclass(frozen=True)
class Decoding:
    """The worker: a unit is the index of a prompt, which its row has as "at"."""

    model: Model
    call: Call | LineCalls
    batch_size: int

    def run(self, stream: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
        calls = (self.call.take([at]) for at in stream)
        with self.model.serve(calls, batch_size=self.batch_size) as serving:
            for served in serving:
                yield [{"at": stream[served.index], **served.result.rows()[0]}]


def open_rows(
    run: Batches, executor: Executor, output: Path, *, overwrite: bool, checkpoint: Mapping[str, Any] | None = None
) -> None:
    """Like `Batches.open_rows`, but only the leading process may delete the file."""
    if overwrite and executor.leads and output.is_file():
        output.unlink()
    executor.wait()
    run.open_rows(output, overwrite=False, checkpoint=checkpoint)


def decode(run: Batches, executor: Executor, job: Generation) -> None:
    """Decodes the missing rows in all workers; afterwards `run` has the rows of every process.

    Raises:
        BatchError: batches failed; the rows of the others are in the file.
        PardecError: finished rows are no longer in the file.
    """
    if not isinstance(executor, Ray):
        job = replace(job, loaded=(run.model, run.call))
    file = run.file
    assert file is not None, "workers write to a file"
    missing = [at for at in range(len(run.items)) if at not in run.rows]
    # Rows of similar length need little padding; the longest come first, so that none starts at the end.
    missing.sort(key=lambda at: -run.call.lengths[at])
    size, batches = job.batch_size, -(-len(missing) // job.batch_size)
    size *= batches_per_stream(batches, executor.workers) if missing and size > 1 else 1
    streams = [missing[start : start + size] for start in range(0, len(missing), size)]
    last_report = time.monotonic()
    others = file.count() - len(run.rows)  # the file may have rows of other prompts

    def sink(rows: list[dict[str, Any]]) -> None:
        nonlocal last_report
        file.append([run.file_row(row.pop("at"), row) for row in rows])
        if time.monotonic() - last_report > EVERY_S:
            say(f"{file.count() - others} of {len(run.items)} rows", quiet=run.quiet)
            last_report = time.monotonic()

    started = time.perf_counter()
    try:
        executor.run(job, streams, sink)
    finally:
        run.seconds += time.perf_counter() - started
        if missing:
            file.append([])  # writes this process's rows again if the file was deleted after the last one
        rows_in_file = file.read()
        for at in missing:
            if run.keys[at] in rows_in_file:
                run.add(at, rows_in_file[run.keys[at]])
    if lost := len(run.items) - len(run.rows):
        raise PardecError(f"{lost} rows are no longer in {file.path}", hint="run the same command again to decode them")
