"""`pardec tune`: searches the cheapest sampler within a bound on quality."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..executors import check_name
from ..requests import preflight
from . import options as o
from .common import Json, dump, say, show
from .config import Config, DryRun

MaxDrop = Annotated[float, typer.Option(help="Points of accuracy that may be lost against sequential.", min=0)]
Budget = Annotated[int, typer.Option(help="Most decodings of the search, each of one problem by one sampler.", min=1)]
Confirm = Annotated[
    int | None, typer.Option(help="New problems that confirm the result, by default as many as needed.", min=1)
]
Cost = Annotated[str, typer.Option(help="The cost to minimize: nfe, tokens_fed or seconds.")]
Samplers = Annotated[
    list[str] | None,
    typer.Option(
        "--sampler", "-s", help="Search only these methods; one without parameters is tried at several settings."
    ),
]
Caches = Annotated[list[str] | None, typer.Option("--cache", help="Search only these caches; none is no cache.")]
Blocks = Annotated[
    list[int] | None, typer.Option("--block-length", help="A block length to try; may be repeated.", min=1)
]


@o.command
def tune(
    model: o.ModelName,
    *,
    task: o.Tasks = None,
    problems: o.Problems,
    chat: o.Chat = None,
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
    sampling: o.Tuned,
    seed: o.Seed = 0,
    batch_size: o.BatchSize = 8,
    executor: o.ComparedBy = "local",
    workers: o.Workers = None,
    loading: o.TextLoading,
) -> None:
    """Search the cheapest sampler, parameters and cache that keep the quality, and print the spec.

    pardec tune tiny-dream --task arithmetic --max-drop 1.0

    pardec tune MODEL --prompts mine.jsonl --scorer number --cost seconds --out tuned/

    pardec tune tiny-dream --task lists -s threshold+eos -s threshold+localleap+eos --cache none --cache dual
    """
    load_arguments, source = o.to_arguments(loading), o.to_arguments(problems)
    resume = source.pop("resume")
    check_name(executor)
    preflight.check_run(model, task or (), sampler or (), sampling, load_arguments, **vars(problems))

    # Imported here since these import torch, which --help and a misspelt name do not need.
    from ..comparison import tuning
    from ..comparison.tuning.advice import table
    from ..comparison.tuning.prepared import describe
    from ..executors import executor as started

    options: dict[str, Any] = {
        "chat": chat,
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
        **load_arguments,
        **sampling,
    }
    if dry_run:
        plan = tuning.preview(model, task, **options)
        dump(plan) if json_ else show(describe(plan))
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
        hint = (
            "with --out RUN finished decodings are saved"
            if problems.out is None
            else "the same command with --resume continues"
        )
        say(f"interrupted\n{hint}", quiet=not leads)
        raise typer.Exit(130) from None
    say(f"{table(advice.evidence)}\n{advice}", quiet=quiet)
    if leads:
        if advice.verdict == "unsure" and not json_:
            raise typer.Exit(1)  # nothing is advised
        dump(advice.document) if json_ else show(advice.spec)
