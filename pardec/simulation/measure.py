"""Describes this machine twice, for the target and for the drafter, with costs measured here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

import torch

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from ..bench.clock import timed
from .machine import Cost, Link, Machine, PartCosts, Role

TOKENS = (1, 2, 4, 8, 16)
_CONTEXT, _REPEATS = 64, 7  # tokens in the cache before a timed forward; timed forwards of each size


def measured(target: LanguageModel, draft: LanguageModel | DraftModule | None, devices: int = 1) -> Machine:
    """A machine with one device `target` and `devices` devices `draft`, without transfer costs.

    Raises SpecError for a drafter whose forwards cannot be timed apart from the target's.
    """
    if isinstance(draft, DraftModule):
        raise SpecError(
            f"{draft.name} runs on states of the target, so that its forwards cannot be measured alone",
            hint="state its costs in a machine file",
        )
    names = tuple(f"draft{number}" for number in range(devices)) if devices > 1 else ("draft",)
    costs: dict[tuple[str, Role], PartCosts] = {("target", "target"): costs_here(target)}
    own = costs["target", "target"] if draft is None else costs_here(draft)
    links = {frozenset((name, other)): Link() for name in names for other in ("target", *names) if name != other}
    return Machine("measured here", "target", names, costs | {(name, "draft"): own for name in names}, links)


@torch.inference_mode()
def costs_here(model: LanguageModel, tokens: Sequence[int] = TOKENS) -> PartCosts:
    """Median seconds of a layer, and of the head, in forwards of one row after a short text."""
    limit = model.max_positions or _CONTEXT + max(tokens)
    context = min(_CONTEXT, limit - max(tokens))
    layers, heads = [], []
    for count in tokens:
        cache = model.new_cache(1, context + count)
        order = torch.arange(context + count, device=model.device)[None]
        text = (order + 1) % model.vocab_size
        model.run(Plan.full(text[:, :context], Visible.causal()), cache)
        plan = Plan(
            tokens=text[:, context:],
            positions=order[:, context:],
            slots=order[:, context:],
            visible=Visible.causal(),
            lengths=torch.full((1,), context + count, device=model.device),
            want=torch.arange(count, device=model.device)[None],
            uniform=context + count,
            span=(context, context + count),
        )
        hidden = model.run(plan, cache)
        hidden.logits()
        run, head = partial(model.run, plan, cache), hidden.logits
        body, last = (median(timed(each, model.device)[1] for _ in range(_REPEATS)) for each in (run, head))
        layers.append((float(count), body / model.layers))
        heads.append((float(count), last))
    return PartCosts(Cost(tuple(layers)), Cost(tuple(heads)))
