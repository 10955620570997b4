"""Selects the sampler of a pipeline call: from a spec, or from the arguments of LLaDA2Pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diffusers import BlockRefinementScheduler, EntropyBoundScheduler

from pardec.models.errors import SpecError, UnknownNameError
from pardec.samplers import registry
from pardec.samplers.masked.contracts import MaskedSampler
from pardec.samplers.spec import Part, Policy, Spec

from ...api import Model
from .arguments import refuse_unless_default
from .policy import policy, with_config
from .scheduler import PardecScheduler


def lockstep(model: Any, scheduler: Any, sampler: str | Spec | Policy | MaskedSampler | None) -> Any:
    """The scheduler for a call that runs in diffusers' loop; None if it runs in pardec's own loop."""
    if sampler is None and isinstance(scheduler, PardecScheduler):
        sampler = scheduler.config.sampler
    if isinstance(model, Model):
        no_sampler = sampler is None and isinstance(scheduler, BlockRefinementScheduler)
        return scheduler if no_sampler and model.language_model.decoding_config.attention == "block-causal" else None
    if isinstance(scheduler, EntropyBoundScheduler):
        raise SpecError(
            f"EntropyBoundScheduler does not run in diffusers' loop with a {type(model).__name__}",
            hint='load the model by its name, or take sampler="entropy_bound"',
        )
    if sampler is None or (isinstance(scheduler, PardecScheduler) and sampler == scheduler.config.sampler):
        return scheduler
    if isinstance(sampler, MaskedSampler):
        raise SpecError(
            f"{sampler.spec} is a resolved sampler, and a {type(model).__name__} is decoded with specs",
            hint='name a spec, sampler="threshold:tau=0.9", or load the model by its name',
        )
    return PardecScheduler(str(sampler), block_length=scheduler.config.block_length)


def select_sampler(
    scheduler: Any, sampler: str | Spec | Policy | MaskedSampler | None, arguments: dict[str, Any]
) -> MaskedSampler:
    """The sampler of a call; `arguments` are the arguments of LLaDA2Pipeline that control how a block is committed."""
    editing = arguments["editing_threshold"]
    if editing is not None and editing <= 0:
        editing = arguments["editing_threshold"] = None  # no editing, as in diffusers
    if sampler is None and isinstance(scheduler, PardecScheduler):
        sampler = scheduler.config.sampler
    if sampler is not None:
        resolved = registry.resolve(sampler, "masked")
        for name, value in arguments.items():
            if name != "gen_length":
                refuse_unless_default(name, value, f"write it into the spec, {str(resolved.spec)!r}")
        return resolved
    for name in ("num_inference_steps", "minimal_topk", "gen_length"):
        if arguments[name] < 1:
            raise SpecError(f"{name} must be at least 1, got {arguments[name]}")
    steps = max(min(arguments["num_inference_steps"], arguments["gen_length"] // arguments["minimal_topk"]), 1)
    if isinstance(scheduler, EntropyBoundScheduler):
        for name in ("threshold", "editing_threshold", "max_post_steps"):
            refuse_unless_default(name, arguments[name], "EntropyBoundScheduler has only an entropy_bound")
        return policy(scheduler, steps=steps)
    if editing is None:
        return policy(with_config(scheduler, editing_threshold=None), steps=steps, threshold=arguments["threshold"])
    try:
        registry.find("edit")
    except UnknownNameError as error:
        raise SpecError(
            f"editing_threshold={editing} needs the method 'edit', which is not available",
            hint="pass editing_threshold=None",
        ) from error
    # diffusers runs one more step on a complete block than max_post_steps: it compares the count after the step.
    edit = f"edit:tau={editing},post={arguments['max_post_steps'] + 1}"
    return policy(scheduler, f"{edit}+eos", steps=steps, threshold=arguments["threshold"])


def with_eos(sampler: MaskedSampler, early: bool) -> MaskedSampler:
    """The sampler with `eos`, or without it."""
    parts = tuple(part for part in sampler.spec.parts if part.name != "eos")
    has_eos = len(parts) < len(sampler.spec.parts)
    if early == has_eos:
        return sampler
    eos_sampler = registry.resolve(Spec((Part("sequential"), Part("eos"))))
    if early:
        part = next(part for part in eos_sampler.spec.parts if part.name == "eos")
        return replace(
            sampler, spec=replace(sampler.spec, parts=(*parts, part)), finish=(*sampler.finish, *eos_sampler.finish)
        )
    finish = tuple(stage for stage in sampler.finish if not isinstance(stage, type(eos_sampler.finish[0])))
    return replace(sampler, spec=replace(sampler.spec, parts=parts), finish=finish)


def display_sampler(call: Mapping[str, Any]) -> MaskedSampler:
    """A sampler that describes diffusers' loop in a Result, with the arguments of the call."""
    names = ("threshold", "editing_threshold", "max_post_steps", "num_inference_steps", "minimal_topk")
    part = Part("LLaDA2Pipeline", tuple((name, str(call[name])) for name in names))
    return replace(registry.resolve("threshold"), exact="relaxed", spec=Spec((part,), Part("block")))
