"""`compare`: from a model and a list of samplers to the table that says which to take."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.printable import plain

from ..environment import checkout, machine, versions
from ..executors import Executor, together
from ..executors import executor as make_executor
from ..io.jsonl import Row, RowsFile
from ..requests.early import check_folder
from ..tasks import Task
from ..tasks.scorers import Score
from . import sources, units
from .entries import SamplerLike
from .plan import Grid, Loading, Plan, loadable, plan
from .progress import progress as watching
from .run import Folder, Run
from .table import Table

if TYPE_CHECKING:
    from ..api import Model


def compare(
    model: Model | str | Path,
    task: str | Task | Sequence[str | Task] | None = None,
    samplers: SamplerLike | Sequence[SamplerLike] = (),
    *,
    prompts: sources.Prompts | None = None,
    scorer: str | Score | None = None,
    limit: int = 50,
    seeds: Sequence[int] = (0,),
    split: str = "heldout",
    problem_seed: int = 7,
    batch_size: int = 8,
    references: bool = True,
    replays: int = 4,
    sweep: bool = False,
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
    cuda_graphs: bool = False,
    **generate_arguments: Any,
) -> Table:
    """Decodes the same prompts with every sampler, and says what each is worth.

    Args:
        model: a loaded model, or the name of one; executors other than "local" need a name.
        task: a task, several, or a group of them.
        samplers: specs or presets, taken as written; the first is what speed-ups refer to.
        prompts: in place of a task or beside it: a file, a list of texts, or of {"prompt": ..., "answer": ...}.
        scorer: of the prompts: "exact", "number", "file.py:function", or a function of (problem, text) that returns a
            number in 0..1; with ray one that other processes can import. A run goes on with the same source of it only.
        limit: problems a task.
        seeds: each problem is decoded once with each.
        split, problem_seed: which problems a task hands out.
        batch_size: problems decoded at once.
        references: decode `sequential` and `oracle` too, for agreement and the share of the floor.
        replays: problems of each task whose whole decode is kept for the report.
        sweep: decode each sampler at every value of its quality parameter, and the methods that it is judged against
            (`threshold` and `fixed` for masked models); the table then has curves. See `pardec.comparison.sweep`.
        warm_up: decode the first batch of each sampler once more before, so that its time is not that of setting up.
        cost_ratio: what a forward of a drafting model costs in forwards of the model, for the simulated speed-up; None
            takes their sizes: the drafter's weights, or the layers that it runs, over the model's.
        out: the run's folder; None keeps nothing.
        resume: go on with the run in `out`, if there is one.
        retry_failed: try the rows again that failed.
        executor, workers: where it is decoded: "local", "torchrun" or "ray", and by how many copies of the model.
        progress: True tells how far it is, False does not, None does on a terminal.
        device, dtype, device_map, revision, offline, mask_id, decoder, text_encoder, quantize, cuda_graphs: as `load`
            takes them, where `model` is a name.
        generate_arguments: as `generate` takes them: max_new_tokens, block_length, temperature, top_k, top_p, cfg,
            cfg_interval, stop_ids, block_align. A model of pictures draws as its authors do where nothing is said.

    Raises:
        SpecError: something that cannot be, before weights are read: a sampler, a task, a folder of another run.
        BatchError: at the end, where batches could not be run at all; the rows of the others are kept in `out`.

    >>> table = compare("tiny-dream", "arithmetic", ["threshold", "threshold@dual"], limit=2, max_new_tokens=16)
    >>> [row["sampler"] for row in table.rows]
    ['threshold', 'threshold@dual']
    """
    if not isinstance(model, str | Path) and executor != "local":
        raise SpecError(f"the {executor} executor loads the model itself", hint="give the model's name or folder")
    check_folder(out, resume)
    if out is None and executor == "torchrun":
        raise SpecError("the torchrun executor needs a run's folder", hint="name one with out")
    sources.refuse_unnamed(scorer, executor)
    made = plan(
        str(model) if isinstance(model, Path) else model,
        [samplers] if isinstance(samplers, SamplerLike) else samplers,
        sources.tasks(task, prompts, scorer),
        generate_arguments,
        Grid(limit, tuple(seeds), split, problem_seed, batch_size, references, replays, sweep),
        Loading(device, dtype, device_map, revision, offline, mask_id, decoder, text_encoder, quantize, cuda_graphs),
        cost_ratio,
    )
    runs_on = make_executor(executor, workers=workers)
    with _home(out) as home:
        where = {"device": device, "device_map": device_map, "executor": executor, "workers": workers}
        where["cuda_graphs"] = cuda_graphs
        folder = Folder(home, {**made.config, "where": where}, _warn if runs_on.leads else lambda text: None)
        rows = _begun(made, folder, runs_on, resume=resume, retry_failed=retry_failed)
        _decode(made, runs_on, folder, rows, warm_up=warm_up, shown=progress)
        table = Table(Run.load(home))
        if out is not None and runs_on.leads:
            write_reports(table, home)
        return table


def write_reports(table: Table, home: Path) -> None:
    """The table of a run in every format, in its folder, and the page that shows it."""
    from .report import page

    table.to_csv(home / "report.csv")
    table.to_markdown(home / "report.md")
    table.to_json(home / "report.json")
    (home / "report.html").write_text(page(table.run), encoding="utf-8")


def _begun(made: Plan, folder: Folder, runs_on: Executor, *, resume: bool, retry_failed: bool) -> RowsFile:
    """The rows made so far, once the folder is ready; one process sees to it before the others look."""
    if runs_on.leads:
        folder.found(resume=resume)
        loadable(made.loading)  # before a folder is made
        folder.start(environment(), resume=resume)
        if retry_failed:
            folder.forget_failed()
    runs_on.wait()
    return folder.rows()


def _decode(
    made: Plan, runs_on: Executor, folder: Folder, file: RowsFile, *, warm_up: bool, shown: bool | None
) -> None:
    """Makes the rows that are missing, and tells how many there are."""
    todo = units.left(made.batches, file.rows)
    total = sum(map(len, made.batches))
    references = sum(unit.reference for batch in made.batches for unit in batch)
    with watching(shown if runs_on.leads else False, total, file.count(), references) as tell:

        def keep(rows: list[Row]) -> None:
            file.append(rows)
            tell(file.count())

        joined = todo and made.grid.batch_size > 1  # a single row has nobody to wait for
        most = together(len(todo), runs_on.workers) if joined else 1
        runs_on.run(made.job(folder.traces, warm_up=warm_up), units.streams(todo, most), keep)


@contextmanager
def _home(out: str | Path | None) -> Iterator[Path]:
    """The run's folder; one that is gone afterwards where none is asked for."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="pardec-") as name:
        yield Path(name)


def environment() -> dict[str, Any]:
    """What a run was made with; no path of this machine is in it."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # above 0 before the run: the machine is shared
    kept = {name: value for name, value in checkout().items() if name != "path"}
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return {"began": began, **versions(), **kept, **machine(), "load_average": load}


def _warn(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)
