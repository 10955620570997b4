"""`pardec compare`: compares samplers in a table, and saves rows and report in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ..executors import check_name
from ..io import output_paths
from ..requests import preflight
from . import options as o
from .common import Json, dump, print_table, say, show
from .config import Config, DryRun
from .inputs import integers


@o.command
def compare(
    model: o.ModelName,
    *,
    task: o.Tasks = None,
    problems: o.Problems,
    chat: o.Chat = None,
    limit: o.Limit = 50,
    split: o.Split = "heldout",
    problem_seed: o.ProblemSeed = 7,
    retry_failed: o.RetryFailed = False,
    no_references: o.NoReferences = False,
    replays: o.Replays = 4,
    sweep: o.Sweep = False,
    points: o.Points = None,
    cost_ratio: o.CostRatio = None,
    latex: o.Latex = None,
    figure: o.Figure = None,
    json_: Json = False,
    quiet: o.Quiet = False,
    config: Config = None,
    dry_run: DryRun = False,
    sampler: o.Samplers = None,
    seeds: o.Seeds = "0",
    sampling: o.Compared,
    batch_size: o.BatchSize = 8,
    executor: o.ComparedBy = "local",
    workers: o.Workers = None,
    loading: o.AnyLoading,
) -> None:
    """Compare samplers on the same prompts: quality, forwards, speed, and the forwards of the best order.

    pardec compare tiny-dream --task arithmetic -s sequential -s threshold -s credit+localleap@dual --out run/

    pardec compare tiny-llama --task records -s sequential -s recycling -s model:name=tiny-llama-draft --cost-ratio 0.2

    pardec compare GSAI-ML/LLaDA-8B-Instruct --prompts mine.jsonl --scorer number -s threshold@dual --json

    pardec compare tiny-dream --task arithmetic --sweep -s credit -s localleap -s threshold@dual --out run/

    pardec compare tiny-llamagen --task captions -s sequential -s sjd:window=32,init=left -s sjd+gsd --out run/

    torchrun --nproc-per-node 8 -m pardec compare MODEL --task parallel -s threshold --out run/ --executor torchrun
    """
    load_arguments, source = o.to_arguments(loading), o.to_arguments(problems)
    seed_list = integers(seeds, f"--seeds takes whole numbers, got {seeds!r}", "for example --seeds 0,1")
    check_name(executor)
    output_paths.check_file(latex)
    if figure is not None:
        output_paths.check_file(output_paths.check_figure(figure))
    preflight.check_run(model, task or (), sampler or (), sampling, load_arguments, **vars(problems), split=split)

    # Imported here since these import torch, which --help and a misspelt name do not need.
    import pardec.comparison

    from ..comparison.preview import describe
    from ..executors import executor as started

    options: dict[str, Any] = {
        "chat": chat,
        "limit": limit,
        "seeds": seed_list,
        "split": split,
        "problem_seed": problem_seed,
        "batch_size": batch_size,
        "references": not no_references,
        "replays": replays,
        "sweep": sweep,
        "points": points,
        "cost_ratio": cost_ratio,
        "retry_failed": retry_failed,
        "executor": executor,
        "workers": workers,
        "progress": not (quiet or json_),
        **source,
        **load_arguments,
        **sampling,
    }
    if dry_run:
        plan = pardec.comparison.preview(model, task, sampler or (), **options)
        dump(plan) if json_ else show(describe(plan))
        return
    leads = started(executor, workers=workers).leads
    try:
        table = pardec.comparison.compare(model, task, sampler or (), **options)
    except KeyboardInterrupt:
        say(_interrupt_message(problems.out), quiet=not leads)
        raise typer.Exit(130) from None
    if leads:
        print_table(json_, table.document, lambda: table, table.to_markdown)
        if latex is not None:
            table.to_latex(latex)
            say(f"wrote {latex}", quiet=quiet)
        if figure is not None:
            say(f"wrote {table.plot(figure)}", quiet=quiet)
        if problems.out is not None:
            say(f"wrote {problems.out / 'report.html'}, and the table as .csv, .md and .json", quiet=quiet)
    if failed := sum(row["failed"] for row in table.rows):
        again = (
            "--resume --retry-failed decodes them again" if problems.out else "with --out RUN they can be tried again"
        )
        say(f"{failed} {'row' if failed == 1 else 'rows'} failed: {again}", quiet=not leads)
        raise typer.Exit(1)


def _interrupt_message(out: Path | None) -> str:
    """Builds the message of an interrupted comparison: how many rows are finished, and how to resume."""
    if out is None:
        return "interrupted\nwith --out RUN finished rows are saved, and --resume continues there"
    file = out / "rows.jsonl"
    count = file.read_bytes().count(b"\n") if file.exists() else 0
    return f"interrupted: {count} rows are finished, in {out}\nthe same command with --resume continues there"
