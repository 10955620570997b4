"""`pardec compare`: samplers in, a table out, and a run's folder with all that it rests on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pardec.models.errors import SpecError

from ..executors import check_name
from ..requests import early
from . import options as o
from .common import Debug, Json, dump, say, show
from .config import Config, DryRun

if TYPE_CHECKING:
    from ..comparison import Table


def compare(
    model: o.ModelName,
    task: o.Tasks = None,
    prompts: o.TaskPrompts = None,
    scorer: o.Scorer = None,
    limit: o.Limit = 50,
    split: o.Split = "heldout",
    problem_seed: o.ProblemSeed = 7,
    out: o.Run = None,
    resume: o.Resume = False,
    retry_failed: o.RetryFailed = False,
    no_references: o.NoReferences = False,
    replays: o.Replays = 4,
    cost_ratio: o.CostRatio = None,
    json_: Json = False,
    quiet: o.Quiet = False,
    config: Config = None,
    dry_run: DryRun = False,
    sampler: o.Samplers = None,
    seeds: o.Seeds = "0",
    max_new_tokens: o.MaxNewTokens = None,
    block_length: o.BlockLength = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    cfg: o.Cfg = None,
    cfg_interval: o.CfgInterval = None,
    batch_size: o.BatchSize = 8,
    executor: o.ComparedBy = "local",
    workers: o.Workers = None,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
    device_map: o.DeviceMap = None,
    quantize: o.Quantize = None,
    cuda_graphs: o.CudaGraphs = False,
    revision: o.Revision = None,
    offline: o.Offline = False,
    mask_id: o.MaskId = None,
    decoder: o.Decoder = None,
    text_encoder: o.TextEncoder = None,
    debug: Debug = False,
) -> None:
    """Compare samplers on the same prompts: quality, forwards, speed, and what the best order would need.

    pardec compare tiny-dream --task arithmetic -s sequential -s threshold -s credit+localleap@dual --out run/

    pardec compare tiny-llama --task records -s sequential -s recycling -s model:name=tiny-llama-draft --cost-ratio 0.2

    pardec compare GSAI-ML/LLaDA-8B-Instruct --prompts mine.jsonl --scorer number -s threshold@dual --json

    pardec compare tiny-llamagen --task captions -s sequential -s sjd:window=32,init=left -s sjd+gsd --out run/

    torchrun --nproc-per-node 8 -m pardec compare MODEL --task parallel -s threshold --out run/ --executor torchrun
    """
    arguments: Any = {
        "max_new_tokens": max_new_tokens,
        "block_length": block_length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "cfg": cfg,
        "cfg_interval": cfg_interval,
    }
    arguments = {name: value for name, value in arguments.items() if value is not None}
    numbers = _seeds(seeds)
    placing: Any = {
        "device": device,
        "dtype": dtype,
        "device_map": device_map,
        "quantize": quantize,
        "mask_id": mask_id,
    }
    check_name(executor)
    run: Any = {"out": out, "resume": resume, "prompts": prompts, "scorer": scorer}
    early.check_run(model, task or (), sampler or (), arguments, placing, **run, split=split)

    # Here and not above: these bring torch, which --help and a misspelt name do not need.
    import pardec.comparison

    from ..comparison.preview import describe
    from ..executors import executor as started

    given: dict[str, Any] = {
        "prompts": prompts,
        "scorer": scorer,
        "limit": limit,
        "seeds": numbers,
        "split": split,
        "problem_seed": problem_seed,
        "batch_size": batch_size,
        "references": not no_references,
        "replays": replays,
        "cost_ratio": cost_ratio,
        "out": out,
        "resume": resume,
        "retry_failed": retry_failed,
        "executor": executor,
        "workers": workers,
        "progress": not (quiet or json_),
        "device": device,
        "dtype": dtype,
        "device_map": device_map,
        "quantize": quantize,
        "cuda_graphs": cuda_graphs,
        "revision": revision,
        "offline": offline,
        "mask_id": mask_id,
        "decoder": decoder,
        "text_encoder": text_encoder,
        **arguments,  # what is not given stays out, so that a preset's own arguments hold
    }
    if dry_run:
        made = pardec.comparison.preview(model, task, sampler or (), **given)
        dump(made) if json_ else show(describe(made))
        return
    leads = started(executor, workers=workers).leads
    try:
        table = pardec.comparison.compare(model, task, sampler or (), **given)
    except KeyboardInterrupt:
        say(_left_off(out), quiet=not leads)
        raise typer.Exit(130) from None
    if leads:
        _show(table, json_)
        if out is not None:
            say(f"wrote {out / 'report.html'}, and the same as .csv, .md and .json", quiet=quiet)
    if all(row["failed"] == row["problems"] * row["seeds"] for row in table.rows):
        raise typer.Exit(1)


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(
            f"--seeds are whole numbers with commas, got {text!r}", hint="for example --seeds 0,1"
        ) from None


def _show(table: Table, json_: bool) -> None:
    """The table on stdout: JSON, drawn on a terminal, else Markdown."""
    if json_:
        dump(table.document())
    elif sys.stdout.isatty():
        from rich import print as rich_print

        rich_print(table)
    else:
        show(table.to_markdown(), end="")


def _left_off(out: Path | None) -> str:
    """What an interrupted run leaves, and how to go on."""
    if out is None:
        return "interrupted\n--out RUN would keep finished rows, and --resume would go on from there"
    file = out / "rows.jsonl"
    count = file.read_bytes().count(b"\n") if file.exists() else 0
    return f"interrupted: {count} rows are finished, in {out}\nthe same command with --resume goes on from there"
