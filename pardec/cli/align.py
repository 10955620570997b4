"""`pardec align`: trains a drafter further on requests that it served."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pardec.models.errors import SpecError

from ..io import output_paths
from . import options as o
from .common import Json, dump, say, show

Drafter = Annotated[str, typer.Option(help="The drafter to train further: an embedded name or an exported folder.")]
Rows = Annotated[
    list[Path],
    typer.Option(
        "--rows",
        help='Answered requests: rows that pardec generate -o wrote, or {"prompt", "answer"} lines; may be repeated.',
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="The new folder for the aligned drafter.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a drafter in --out, even if it is --drafter itself.")
]
Steps = Annotated[int | None, typer.Option(help="Length in steps, by default 200.", min=1)]
Minutes = Annotated[float | None, typer.Option(help="Length in minutes, in place of --steps.", min=0.01)]
Loss = Annotated[str, typer.Option(help="The loss: fkl, ce, rkl, jsd:0.5, tvd, lk, lk_hybrid:3 or tvd++.")]
WrongOnly = Annotated[bool, typer.Option("--wrong-only", help="Learn only where the drafter was wrong.")]
Rate = Annotated[
    float | None, typer.Option("--lr", help="Peak learning rate; the default depends on the kind of drafter.", min=1e-9)
]
StepTokens = Annotated[int, typer.Option("--batch", help="Tokens per training step.", min=1)]
Longest = Annotated[int, typer.Option(help="Most tokens per row; longer prompts lose their beginning.", min=8)]
Validation = Annotated[
    int, typer.Option("--validation", help="Rows held out for measuring, at most a quarter of all.", min=1)
]
Drafts = Annotated[int, typer.Option(help="Tokens per draft when the drafter is measured.", min=1)]


@o.command
def align(
    model: o.ModelName,
    *,
    drafter: Drafter,
    rows: Rows,
    out: Out,
    overwrite: Overwrite = False,
    steps: Steps = None,
    minutes: Minutes = None,
    loss: Loss = "fkl",
    wrong_only: WrongOnly = False,
    lr: Rate = None,
    batch: StepTokens = 3000,
    longest: Longest = 600,
    validation: Validation = 64,
    drafts: Drafts = 5,
    seed: o.Seed = 0,
    json_: Json = False,
    quiet: o.Quiet = False,
    dtype: o.Dtype = "auto",
    revision: o.Revision = None,
    offline: o.Offline = False,
) -> None:
    """Train a drafter further on requests that it served, and print its tokens per round before and after.

    pardec generate MODEL --prompts today.jsonl -s eagle:name=FOLDER,k=4 -o served.jsonl

    pardec align MODEL --drafter FOLDER --rows served.jsonl --minutes 10 --out FOLDER-2
    """
    if steps is not None and minutes is not None:
        raise SpecError("--steps and --minutes are both given", hint="give one of them")
    output_paths.check_folder(out)

    # Imported here since these import torch, which --help and a misspelt option do not need.
    import pardec

    from ..training.align import Alignment
    from ..training.align import align as align_on
    from ..training.losses import loss as check_loss

    check_loss(loss)
    target = pardec.load(model, device="cpu", dtype=dtype, revision=revision, offline=offline)
    how = Alignment(
        rows,
        out,
        overwrite=overwrite,
        steps=steps,
        minutes=minutes,
        loss=loss,
        wrong_only=wrong_only,
        rate=lr,
        batch=batch,
        longest=longest,
        validation=validation,
        drafts=drafts,
        seed=seed,
    )
    try:
        result = align_on(target, drafter, how, report=lambda line: say(line, quiet=quiet))
    except KeyboardInterrupt:
        say("interrupted: nothing was exported\na shorter --minutes or --steps finishes sooner")
        raise typer.Exit(130) from None
    say(f"{result.steps} steps on {result.rows} rows; {result.validation} held out", quiet=quiet)
    if json_:
        dump(asdict(result))
        return
    for name, measured in (("before", result.before), ("after", result.after)):
        depths = ", ".join(f"{share:.0%}" for share in measured.depths)
        show(f"{name}: {measured.length:.3f} tokens per round; the first 1 to {drafts} drafted tokens right: {depths}")
    show(f"wrote {result.out}")
