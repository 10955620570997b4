"""`pardec advise`: times a few samplers on a model and names one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from pardec.models.errors import SpecError
from pardec.models.files.catalog import embedded_names

from ..requests import preflight
from . import options as o
from .common import Json, dump, say, show

Task = Annotated[str | None, typer.Option("--task", "-t", help="A task; by default arithmetic for embedded models.")]
Prompts = Annotated[Path | None, typer.Option(help="A .jsonl file with prompts, and answers to score.")]
Budget = Annotated[
    str,
    typer.Option(help="About how long to measure, such as 30s, 2m or 1h; each sampler answers at least three prompts."),
]
Beside = Annotated[
    str | None, typer.Option(help="An autoregressive model whose plain decoding answers the same prompts.")
]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


@o.command
def advise(
    model: o.ModelName,
    *,
    task: Task = None,
    prompts: Prompts = None,
    scorer: o.Scorer = None,
    budget: Budget = "2m",
    beside: Beside = None,
    chat: o.Chat = None,
    json_: Json = False,
    quiet: o.Quiet = False,
    sampling: o.Tuned,
    loading: o.TextLoading,
) -> None:
    """Time the samplers that suit a model on your prompts, and print the fastest one that keeps the quality.

    pardec advise tiny-dream --budget 30s

    pardec advise smollm2 --prompts mine.jsonl --budget 5m

    pardec advise GSAI-ML/LLaDA-8B-Instruct --prompts mine.jsonl --beside Qwen/Qwen2.5-7B-Instruct
    """
    limit = seconds(budget)
    if task is None and prompts is None:
        if model not in embedded_names():
            raise SpecError("no prompts are given", hint="--prompts mine.jsonl, or a task such as --task arithmetic")
        task = "arithmetic"
    load_arguments = o.to_arguments(loading)
    names = () if task is None else (task,)
    preflight.check_run(
        model, names, (), sampling, load_arguments, out=None, resume=False, prompts=prompts, scorer=scorer
    )

    # Imported here since it imports torch, which --help and a misspelt option do not need.
    from ..comparison.advise import advise as advised

    found = advised(
        model,
        task,
        prompts=prompts,
        scorer=scorer,
        budget=limit,
        beside=beside,
        chat=chat,
        told=lambda text: say(text, quiet=quiet),
        loading=load_arguments,
        **sampling,
    )
    say(str(found), quiet=quiet)
    dump(found.document()) if json_ else show(found.spec)


def seconds(text: str) -> float:
    """Seconds of "30s", "2m" or a plain number. Raises SpecError for anything else.

    >>> seconds("2m"), seconds("1.5 h"), seconds("7")
    (120.0, 5400.0, 7.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) == 0:
        raise SpecError(f"--budget must be a time, got {text!r}", hint="write it like 30s, 2m or 1h")
    return float(match[1]) * _UNITS[match[2]]
