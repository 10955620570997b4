"""`compare`: decodes with a list of samplers and returns the table that compares them."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pardec.models.errors import SpecError
from pardec.models.printable import plain

from ..environment import checkout, machine, versions
from ..executors import Executor, batches_per_stream
from ..executors import executor as make_executor
from ..io.jsonl import Row, RowsFile
from ..requests.preflight import check_folder
from ..tasks import Task
from ..tasks.functions import ScoreError, name_of
from ..tasks.scorers import SCORERS, Score
from . import sources, units
from .entries import SamplerLike
from .plan import Grid, Loading, Plan, loadable, plan
from .run import Folder, Run
from .table import Table
from .units import Problems

if TYPE_CHECKING:
    from ..api import Model


def compare(
    model: Model | str | Path,
    task: str | Task | Sequence[str | Task] | None = None,
    samplers: SamplerLike | Sequence[SamplerLike] = (),
    *,
    prompts: sources.Prompts | None = None,
    scorer: str | Score | None = None,
    chat: bool | None = None,
    limit: int = 50,
    seeds: Sequence[int] = (0,),
    split: str = "heldout",
    problem_seed: int = 7,
    batch_size: int = 8,
    references: bool = True,
    replays: int = 4,
    sweep: bool = False,
    points: int | None = None,
    warm_up: bool = True,
    cost_ratio: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    executor: str = "local",
    workers: int | None = None,
    progress: bool | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    revision: str | None = None,
    offline: bool = False,
    mask_id: int | None = None,
    decoder: str | None = None,
    text_encoder: str | None = None,
    quantize: str | None = None,
    packed: bool | None = None,
    activations: str | None = None,
    cuda_graphs: bool | Literal["auto"] = "auto",
    adapter: str | None = None,
    **generate_arguments: Any,
) -> Table:
    """Decodes the same prompts with every sampler and measures quality, forwards and speed of each.

    Args:
        model: a loaded model, or the name of one; executors other than "local" need a name.
        task: a task, several, or a group of them.
        samplers: specs or presets; speed-ups are relative to the first.
        prompts: instead of a task or in addition: a file, a list of texts, or of {"prompt": ..., "answer": ...}.
        scorer: of the prompts: "exact", "number", "file.py:function", or a function of (problem, text) that returns a
            number in 0..1; for ray, one that other processes can import. A run resumes only with the same source code.
        chat: put text prompts into the model's chat template, as user messages, or pass plain text (False); None
            does what `pardec generate` does: the template if there is one, but not for embedded models.
        limit: problems per task.
        seeds: each problem is decoded once per seed.
        split, problem_seed: select the problems of a task.
        batch_size: problems decoded at once.
        references: decode `sequential` and `oracle` too, for the agreement and the share of the floor.
        replays: problems of each task whose full result is saved for the report.
        sweep: decode each sampler at every value of its quality parameter, and the methods that it is judged against
            (`threshold` and `fixed` for masked models); the table then has curves. See `pardec.comparison.sweep`.
        points: of a sweep, settings of a method at most; None decodes all.
        warm_up: first decode one batch of each sampler untimed, so that speeds exclude one-time setup.
        cost_ratio: cost of a forward of the drafting model relative to one of the model, for the simulated speed-up;
            None derives it from their sizes (weights, or layers that the drafter runs).
        out: the run's folder; None saves nothing.
        resume: continue the run in `out`, if there is one.
        retry_failed: decode failed rows again.
        executor, workers: "local", "torchrun" or "ray", and the number of copies of the model.
        progress: True shows it, False does not, None shows it on a terminal.
        device, dtype, device_map, revision, offline, mask_id, decoder: as in `load`, if `model` is a name.
        text_encoder, quantize, packed, activations, cuda_graphs, adapter: the same.
        generate_arguments: as in `generate`: max_new_tokens, block_length, temperature, top_k, top_p, cfg,
            cfg_interval, stop_ids, block_align. Without max_new_tokens an answer gets the length that its task
            declares, 64 tokens for prompts. Image models default to the sampling settings of their authors.

    Raises:
        SpecError: before weights are read, for invalid arguments: a sampler, a task, a folder of another run.
        BatchError: at the end, if batches could not be run; the rows of the other batches are saved in `out`.

    >>> table = compare("tiny-dream", "arithmetic", ["threshold", "threshold@dual"], limit=2, max_new_tokens=16)
    >>> [row["sampler"] for row in table.rows]
    ['threshold', 'threshold@dual']
    """
    if not isinstance(model, str | Path) and executor != "local":
        raise SpecError(f"the {executor} executor cannot send a loaded model", hint="give the model's name or folder")
    check_folder(out, resume)
    if out is None and executor == "torchrun":
        raise SpecError("the torchrun executor needs a folder for the run", hint="name one with out=FOLDER")
    sources.refuse_unnamed(scorer, executor)
    comparison = plan(
        str(model) if isinstance(model, Path) else model,
        [samplers] if isinstance(samplers, SamplerLike) else samplers,
        sources.tasks(task, prompts, scorer),
        generate_arguments,
        Grid(limit, tuple(seeds), split, problem_seed, batch_size, references, replays, sweep, points),
        Loading(
            device,
            dtype,
            device_map,
            revision,
            offline,
            mask_id,
            decoder,
            text_encoder,
            quantize,
            packed,
            activations,
            cuda_graphs,
            adapter,
        ),
        cost_ratio,
        chat,
    )
    pool = make_executor(executor, workers=workers)
    if scorer is not None and pool.leads:
        _warn_of_missing_answers(comparison)
    with _run_folder(out) as home:
        location = {"device": device, "device_map": device_map, "executor": executor, "workers": workers}
        location["cuda_graphs"] = cuda_graphs
        folder = Folder(home, {**comparison.config, "where": location}, _warn if pool.leads else lambda text: None)
        rows = _prepare_rows(comparison, folder, pool, resume=resume, retry_failed=retry_failed)
        _decode(comparison, pool, folder, rows, warm_up=warm_up, visible=progress)
        table = Table(Run.load(home))
        if out is not None and pool.leads:
            write_reports(table, home)
        return table


def write_reports(table: Table, home: Path) -> None:
    """Writes the table of a run in every format into its folder, and the HTML report."""
    from .report import page

    table.to_csv(home / "report.csv")
    table.to_markdown(home / "report.md")
    table.to_json(home / "report.json")
    (home / "report.html").write_text(page(table.run), encoding="utf-8")


def _prepare_rows(comparison: Plan, folder: Folder, pool: Executor, *, resume: bool, retry_failed: bool) -> RowsFile:
    """The finished rows, once the folder is ready; one process prepares it before the others read it."""
    if pool.leads:
        folder.existing(resume=resume)
        loadable(comparison.loading)  # before the folder is created
        folder.start(environment(), resume=resume)
        if retry_failed:
            folder.forget_failed()
    pool.wait()
    return folder.rows()


def _decode(
    comparison: Plan, pool: Executor, folder: Folder, file: RowsFile, *, warm_up: bool, visible: bool | None
) -> None:
    """Decodes the missing rows and reports progress."""
    todo = units.remaining(comparison.batches, file.rows)
    total = sum(map(len, comparison.batches))
    references = sum(unit.reference for batch in comparison.batches for unit in batch)
    with show_progress(visible if pool.leads else False, total, file.count(), references) as report:
        check = ScorerCheck(comparison.tasks, comparison.problems, _warn if pool.leads else lambda text: None)

        def save(rows: list[Row]) -> None:
            for row in rows:
                check.row(row)
            file.append(rows)
            report(file.count())

        streaming = todo and comparison.grid.batch_size > 1  # streams only help with several rows per batch
        limit = batches_per_stream(len(todo), pool.workers) if streaming else 1
        pool.run(comparison.job(folder.traces, warm_up=warm_up), units.streams(todo, limit), save)


@contextmanager
def _run_folder(out: str | Path | None) -> Iterator[Path]:
    """The run's folder; a temporary one if `out` is None."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="pardec-") as name:
        yield Path(name)


def environment() -> dict[str, Any]:
    """Versions, source and machine of a run, without any local path."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # if high, the machine was shared
    source = {name: value for name, value in checkout().items() if name != "path"}
    start = datetime.now(UTC).isoformat(timespec="seconds")
    return {"began": start, **versions(), **source, **machine(), "load_average": load}


def _warn_of_missing_answers(comparison: Plan) -> None:
    """Warns before decoding that a requested scorer has no answers to compare with."""
    for task in comparison.tasks.values():
        missing = set(sources.unanswered(task))
        if missing.issuperset(problem.id for problem in comparison.problems[task.name]):
            _warn(f"warning: no prompt of {task.name} has an answer, so that there is no accuracy")


def _warn(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)


_FAILED = "ScoreError: "  # how the error of a row begins


class ScorerCheck:
    """Checks the first finished row of each task that a user's scorer rates; `warn` gets warnings."""

    def __init__(self, tasks: Mapping[str, Task], problems: Problems, warn: Callable[[str], object]) -> None:
        self._problems, self._warn = problems, warn
        scorers = {name: getattr(task, "scorer", None) for name, task in tasks.items()}
        self._unchecked = {
            name: name_of(scorer) for name, scorer in scorers.items() if scorer and scorer not in SCORERS
        }

    def row(self, row: Row) -> None:
        """Raises ScoreError if the scorer failed on the task's first row, and warns if it returned None."""
        if row["task"] not in self._unchecked:
            return
        error = row["error"]
        if error is not None and not error.startswith(_FAILED):
            return  # the row was not decoded
        name = self._unchecked.pop(row["task"])
        if error is not None:
            raise ScoreError(error.removeprefix(_FAILED), hint="nothing else was decoded; correct the scorer first")
        if row["score"] is None:
            self._warn(f"warning: the scorer {name!r} returned None for problem {row['problem']}, which is not a score")


EVERY_S = 10.0  # seconds between two lines

Report = Callable[[int], None]  # takes the number of finished rows


@contextmanager
def show_progress(visible: bool | None, total: int, before: int, references: int = 0) -> Iterator[Report]:
    """Yields a function to call with the number of finished rows, of `total`; `before` were finished before this run.

    Args:
        references: how many of the rows belong to references.
        visible: True for a bar or lines, None for a bar if stderr is a terminal, False for nothing.
    """
    note = f" ({references} of references)" if references else ""  # explains why there are more rows than problems
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if visible is False or (visible is None and not terminal) or total == before:
        yield lambda now: None
    elif terminal:
        with _bar(total, before, note) as report:
            yield report
    else:
        yield Lines(total, before, note)


class Lines:
    """Prints a line every few seconds: finished rows, and the remaining time at the current pace."""

    def __init__(self, total: int, before: int, note: str = "") -> None:
        self.total, self.before, self.suffix = total, before, note
        self.started = self.reported = time.monotonic()

    def __call__(self, finished: int) -> None:
        clock_now = time.monotonic()
        if clock_now - self.reported < EVERY_S and finished < self.total:
            return
        self.reported = clock_now
        time_left = (self.total - finished) * (clock_now - self.started) / max(finished - self.before, 1)
        ending = f", {clock(time_left)} left" if finished < self.total else f" in {clock(clock_now - self.started)}"
        print(f"{finished} of {self.total} rows{self.suffix}{ending}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Formats a duration.

    >>> clock(83), clock(7384)
    ('1:23', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def _bar(total: int, before: int, note: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"rows{note}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=total, completed=before)
        yield lambda now: bar.update(task, completed=now)
