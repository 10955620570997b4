"""`pardec simulate`: decodes with a spec, and times its rounds on a described machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pardec.models.errors import SpecError

from ..io import output_paths
from ..requests import preflight
from . import inputs
from . import options as o
from .common import print_table, say

MachineFile = Annotated[
    Path | None, typer.Option("--machine", help="A TOML file with the costs of a machine.", metavar="FILE.toml")
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure", help="Measure costs here, and simulate two machines like this one: for target and drafter."
    ),
]
Schedules = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        help="A schedule to time: pearl, easyspec, mirror, dovetail, plain or sequential; may be repeated.",
    ),
]
ExitLayer = Annotated[
    int | None, typer.Option(help="For mirror: layer of the target's early exit, counted from 0.", min=0)
]
Kappa = Annotated[
    int | None, typer.Option(help="For mirror: candidate tokens of the early exit after each node (4).", min=1)
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.", metavar="FILE")]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", help="Write one HTML file with the timelines.", metavar="FILE")
]


@o.command
def simulate(
    model: o.ModelName,
    *,
    prompt: o.Prompt = None,
    prompts: o.Prompts = None,
    chat: o.Chat = None,
    machine: MachineFile = None,
    measure: Measure = False,
    schedule: Schedules = None,
    exit_layer: ExitLayer = None,
    kappa: Kappa = None,
    json_: JsonFile = None,
    html: HtmlFile = None,
    quiet: o.Quiet = False,
    sampling: o.TextSampling,
    seed: o.Seed = 0,
    loading: o.TextLoading,
) -> None:
    """Decode prompts, and print how long that takes with each schedule on a machine that a file describes.

    pardec simulate tiny-llama -s pearl:name=tiny-llama-draft,k=4 --machine machine.toml -p "Tom has 8 cups."

    pardec simulate tiny-llama -s model:name=tiny-llama-draft,k=4 --schedule mirror --measure -p "Tom has 8 cups."
    """
    if (machine is None) != measure:
        raise SpecError(
            "the costs come from either --machine or --measure",
            hint="pass --machine FILE.toml, or --measure to time this machine",
        )
    for target in (json_, html):
        output_paths.check_file(target)
    items = inputs.read(prompt or [], prompts)
    arguments: Any = {"seed": seed, **sampling}
    spec = arguments.pop("sampler", None) or "sequential"
    load_arguments = o.to_arguments(loading)
    preflight.check(model, [spec], arguments, load_arguments, draws=False)
    preflight.check_texts(item.prompt for item in items)

    # Imported here since these import torch, which --help and a misspelt name do not need.
    import pardec

    from ..io.saving import write_file
    from ..simulation import Machine
    from ..simulation import simulate as run
    from ..simulation.report import as_json, columns, exit_columns, markdown, page, table

    costs = None if machine is None else Machine.read(machine)
    loaded = pardec.load(model, **load_arguments)
    items = inputs.as_messages(items, loaded, chat=chat, quiet=quiet)
    report = run(
        loaded,
        [item.prompt for item in items],
        sampler=spec,
        machine=costs,
        schedules=schedule or (),
        exit_layer=exit_layer,
        kappa=kappa,
        **arguments,
    )
    if json_ is not None:
        write_file(json_, as_json(report))
    if html is not None:
        write_file(html, page(report))
    for path in (json_, html):
        if path is not None:
            say(f"wrote {path}", quiet=quiet)
    for head, rows in (columns(report), exit_columns(report)):
        if rows:
            print_table(False, dict, partial(table, head, rows), partial(markdown, head, rows))
