"""`pardec plan`: the memory of a model before it is loaded, or of a request, and what fits a budget."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from pardec.models.errors import SpecError
from pardec.models.files.catalog import embedded_names
from pardec.models.files.sources import local

from . import options as o
from .common import Json, dump, show

Rows = Annotated[int | None, typer.Option("--batch", help="Rows of the batch, by default 1.", min=1)]
PromptTokens = Annotated[int | None, typer.Option("--prompt", help="Tokens of each prompt, by default 128.", min=1)]
NewTokens = Annotated[int | None, typer.Option("--new", help="Tokens of each answer, by default 64.", min=1)]
Memory = Annotated[
    str | None, typer.Option(help="A budget, such as 3GB or 512MiB: also print the largest batch and draft that fit.")
]
Acceptance = Annotated[
    float | None,
    typer.Option(help="Probability that a drafted token is accepted, to print the speed-up.", min=0, max=1),
]

_PROMPT, _NEW = 128, 64  # tokens, where the caller names none
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@o.command
def plan(
    model: o.ModelName,
    *,
    sampler: o.Sampler = None,
    batch: Rows = None,
    prompt: PromptTokens = None,
    new: NewTokens = None,
    temperature: o.Temperature = None,
    memory: Memory = None,
    acceptance: Acceptance = None,
    json_: Json = False,
    loading: o.TextLoading,
) -> None:
    """Print the memory of weights, keys and values, drafts and logits, without decoding, and what fits a budget.

    Of a GGUF file or a folder, without --sampler, --memory and --acceptance: what it takes once it is loaded, and an
    estimate of its speed, before its weights are read. Keys and values are those of 1,000 positions of a row, or of
    --batch, --prompt and --new.

    pardec plan model.gguf --batch 4 --prompt 2000 --new 500

    pardec plan tiny-llama -s lookup@kivi:bits=4 --batch 8 --prompt 256 --new 128

    pardec plan MODEL -s model:name=DRAFTER,k=5+beam --prompt 2000 --new 500 --memory 3GB --acceptance 0.7
    """
    budget = None if memory is None else size(memory)
    if (sampler, budget, acceptance) == (None, None, None) and model not in embedded_names() and local(model):
        given = _before_loading(model, temperature, loading)
        if (batch, prompt, new) != (None, None, None):
            given |= {"rows": batch or 1, "positions": (prompt or _PROMPT) + (new or _NEW)}
        from ..load_plan import plan_loading

        loaded = plan_loading(model, **given)
        dump(loaded.document()) if json_ else show(str(loaded))
        return

    # Imported here since it imports torch, which --help and a misspelt option do not need.
    from ..memory_plan import plan as planned

    result = planned(
        model,
        sampler,
        batch=batch or 1,
        prompt=prompt or _PROMPT,
        new=new or _NEW,
        temperature=temperature or 0.0,
        memory=budget,
        acceptance=acceptance,
        **o.to_arguments(loading),
    )
    dump(result.document()) if json_ else show(str(result))


def _before_loading(model: str, temperature: float | None, loading: o.TextLoading) -> dict[str, Any]:
    """The arguments of `load` that decide how much a local model takes. Raises SpecError for options that do not."""
    given = o.to_arguments(loading)
    request = "leave it out, or add --sampler to plan a request"
    without_effect = (
        ("--temperature", temperature, f"does not change what {model} takes once it is loaded", request),
        ("--mask-id", given.pop("mask_id", None), f"does not change what {model} takes once it is loaded", None),
        ("--revision", given.pop("revision", None), f"is for models on the hub, and {model} is on this machine", None),
        (
            "--offline",
            given.pop("offline") if loading.adapter is None else None,
            f"changes nothing: {model} is on this machine, and nothing is downloaded",
            None,
        ),
        (
            "--cuda-graphs",
            given.pop("cuda_graphs", None),
            "takes memory that is known only once the model is loaded",
            None,
        ),
    )
    for option, value, why, way_out in without_effect:
        if value is not None and value is not False:
            text = option if value is True else f"{option} {value}"
            raise SpecError(f"{text} {why}", hint=way_out or "leave it out")
    return given


def size(text: str) -> int:
    """Bytes of "3GB", "512MiB" or a plain number. Raises SpecError for anything else.

    >>> size("3GB"), size("1.5 KiB"), size("70")
    (3000000000, 1536, 70)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise SpecError(f"--memory must be a size in bytes, got {text!r}", hint="write it like 3GB or 512MiB")
    unit = match[2].upper()
    factor = 1024 ** "KMGT".index(unit) * 1024 if match[3] else _UNITS[unit]
    return int(float(match[1]) * factor)
