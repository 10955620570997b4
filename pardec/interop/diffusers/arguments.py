"""The arguments of LLaDA2Pipeline's call: their defaults, and their translation to pardec."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from diffusers import LLaDA2Pipeline
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.limits import RANGE, divides


@cache
def defaults() -> dict[str, Any]:
    """Every argument of LLaDA2Pipeline's call with its default."""
    signature = inspect.signature(inspect.unwrap(LLaDA2Pipeline.__call__))
    return {name: argument.default for name, argument in signature.parameters.items() if name != "self"}


def accepts_pipeline_call(network: Any) -> bool:
    """Whether `network` accepts the arguments with which LLaDA2Pipeline calls its model."""
    if not callable(network):
        return False
    parameters = inspect.signature(getattr(network, "forward", network)).parameters
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in parameters.values())
    return takes_any or {"attention_mask", "position_ids"} <= parameters.keys()


def refuse_unless_default(name: str, value: Any, hint: str) -> None:
    """Raises SpecError for an unsupported value; None and the default are accepted."""
    if value is not None and value != defaults()[name]:
        raise SpecError(f"{name}={value!r} cannot be combined with a sampler spec", hint=hint)


def sampling_settings(
    temperature: float, top_k: int | None, top_p: float | None, sampling_method: str
) -> dict[str, Any]:
    """temperature, top_k and top_p for pardec; "greedy" takes the likeliest token at any temperature."""
    if sampling_method not in ("auto", "greedy", "multinomial"):
        raise SpecError(f"unknown sampling_method {sampling_method!r}", hint='it is "auto", "greedy" or "multinomial"')
    if not divides(temperature):
        raise SpecError(f"temperature must be {RANGE}, got {temperature}", hint="0 takes the likeliest token")
    if sampling_method == "greedy" or not temperature:
        return {"temperature": 0.0, "top_k": None, "top_p": None}
    if top_p is not None and not top_p > 0:
        raise SpecError(f"top_p must be above 0, got {top_p}", hint="leave it out to keep every token")
    return {
        "temperature": float(temperature),
        "top_k": top_k if top_k is not None and top_k > 0 else None,
        "top_p": top_p if top_p is not None and top_p < 1 else None,
    }


def draw_seeds(generator: torch.Generator | None, count: int) -> list[int]:
    """`count` seeds from the generator, or from torch's global generator as in diffusers."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise SpecError(
            f"generator must be a torch.Generator, got {type(generator).__name__}",
            hint="one generator draws for all rows: generator=torch.Generator().manual_seed(0)",
        )
    device = torch.device("cpu") if generator is None else generator.device
    seeds: Tensor = torch.randint(2**62, (count,), generator=generator, device=device)
    return [int(seed) for seed in seeds.tolist()]
