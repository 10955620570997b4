"""`pardec tune`: a model and a bound in, one spec out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..executors import check_name
from ..requests import early
from . import options as o
from .common import Json, dump, say, show
from .config import Config, DryRun

MaxDrop = Annotated[float, typer.Option(help="Points of accuracy that may be lost against sequential.", min=0)]
Budget = Annotated[int, typer.Option(help="Decodes of the search: a sampler on a problem each.", min=1)]
Confirm = Annotated[int | None, typer.Option(help="Fresh problems that confirm; else as the bound needs.", min=1)]
Cost = Annotated[str, typer.Option(help="What is to be small: nfe, tokens_fed or seconds.")]
Samplers = Annotated[
    list[str] | None,
    typer.Option("--sampler", "-s", help="Only these; a part without parameters stands for all worth trying."),
]
Caches = Annotated[list[str] | None, typer.Option("--cache", help="Only these caches, none for none; repeat it.")]
Blocks = Annotated[list[int] | None, typer.Option("--block-length", help="A block length to try; repeat it.", min=1)]


@o.command
def tune(
    model: o.ModelName,
    *,
    task: o.Tasks = None,
    problems: o.Problems,
    max_drop: MaxDrop = 1.0,
    budget: Budget = 1000,
    confirm: Confirm = None,
    cost: Cost = "nfe",
    sampler: Samplers = None,
    cache: Caches = None,
    block_length: Blocks = None,
    json_: Json = False,
    quiet: o.Quiet = False,
    config: Config = None,
    dry_run: DryRun = False,
    sampling: o.Sampling,
    seed: o.Seed = 0,
    batch_size: o.BatchSize = 8,
    executor: o.ComparedBy = "local",
    workers: o.Workers = None,
    place: o.TextPlacing,
) -> None:
    """Search samplers, parameters and caches for the cheapest that keeps the quality; prints its spec.

    pardec tune tiny-dream --task arithmetic --max-drop 1.0

    pardec tune MODEL --prompts mine.jsonl --scorer number --cost seconds --out tuned/

    pardec tune tiny-dream --task lists -s threshold+eos -s threshold+localleap+eos --cache none --cache dual
    """
    arguments, placing, source = o.given(sampling), o.given(place), o.given(problems)
    resume = source.pop("resume")
    check_name(executor)
    early.check_run(model, task or (), sampler or (), arguments, placing, **vars(problems))

    # Here and not above: these bring torch, which --help and a misspelt name do not need.
    from ..comparison import tuning
    from ..comparison.tuning.advice import table
    from ..comparison.tuning.prepared import describe
    from ..executors import executor as started

    options: dict[str, Any] = {
        "max_drop": max_drop,
        "budget": budget,
        "confirm": confirm,
        "cost": cost,
        "samplers": sampler,
        "caches": cache,
        "block_lengths": block_length or (),
        "seed": seed,
        "executor": executor,
        **source,
        **placing,
        **arguments,
    }
    if dry_run:
        made = tuning.preview(model, task, **options)
        dump(made) if json_ else show(describe(made))
        return
    leads = started(executor, workers=workers).leads
    quiet = quiet or not leads
    try:
        advice = tuning.tune(
            model,
            task,
            resume=resume,
            batch_size=batch_size,
            workers=workers,
            progress=False if quiet or json_ else None,
            told=lambda text: say(text, quiet=quiet),
            **options,
        )
    except KeyboardInterrupt:
        how = (
            "--out RUN would keep what is finished"
            if problems.out is None
            else "the same command with --resume goes on"
        )
        say(f"interrupted\n{how}", quiet=not leads)
        raise typer.Exit(130) from None
    say(f"{table(advice.evidence)}\n{advice}", quiet=quiet)
    if leads:
        dump(advice.document) if json_ else show(advice.spec)
