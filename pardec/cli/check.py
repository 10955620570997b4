"""`pardec check`: decodes with a drafter or cache and without it, and reports whether the output agrees."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..requests import preflight
from . import inputs
from . import options as o
from .common import Json, dump, say, show

Checked = Annotated[str, typer.Option("--sampler", "-s", help="The spec to check.")]
Expected = Annotated[
    float | None,
    typer.Option(
        "--expected", help="The drafter's published tokens per round; by default those of its card.", metavar="TOKENS"
    ),
]
Samples = Annotated[int | None, typer.Option(help="Rows per prompt where tokens are sampled (64).", min=8)]


@o.command
def check(
    model: o.ModelName,
    *,
    sampler: Checked,
    prompt: o.Prompt = None,
    prompts: o.Prompts = None,
    chat: o.Chat = None,
    expected: Expected = None,
    samples: Samples = None,
    pairs: o.Pairs = 3,
    json_: Json = False,
    quiet: o.Quiet = False,
    sampling: o.CheckedSampling,
    stop: o.Stop = None,
    seed: o.Seed = 0,
    loading: o.ServedLoading,
) -> None:
    """Decode with and without a drafter or cache, and say whether the output is what the sampler promises.

    Prints how many rows are equal, where the others part and why (a tie, rounding, a fault, or a sampler that is not
    exact), what share of drafted tokens is accepted, and seconds. Above temperature 0 a test compares two samples.
    The exit code is 1 if there is a fault.

    pardec check tiny-llama -s eagle:name=tiny-llama-eagle,k=5

    pardec check tiny-dream -s threshold@dual -p "Tom has 8 cups. He loses 3. How many cups does Tom have now?"

    pardec check tiny-llama -s model:name=tiny-llama-draft,k=4 --temperature 1.0
    """
    items = inputs.read(prompt or [], prompts) if prompt or prompts is not None else None
    arguments: Any = {"seed": seed, **sampling}
    if stop is not None:
        arguments["stop"] = inputs.read_stop(stop)
    load_arguments = o.to_arguments(loading)
    preflight.check(model, [sampler], arguments, load_arguments)
    preflight.check_texts(item.prompt for item in items or ())

    # Imported here since it imports torch, which --help and a misspelt name do not need.
    from ..api import load

    loaded = load(model, **load_arguments)
    say(loaded.network.describe(), quiet=quiet)
    if items is not None:
        items = inputs.as_messages(items, loaded, chat=chat, quiet=quiet)
    texts = None if items is None else [item.prompt for item in items]
    found = loaded.check(sampler, texts, expected=expected, samples=samples, pairs=pairs, **arguments)
    dump(found.to_json()) if json_ else show(str(found))
    if found.faults:
        raise typer.Exit(1)
