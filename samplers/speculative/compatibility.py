"""Checks which stages, nested drafters, models and requests of the verify loop work together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pardec.models.cuda_graphs.runner import plain_decoder

from ..cards import name_of
from ..traits import NONE, Party, Reasons, Trait, Why, refuse
from .contracts import Drafter, SpeculativeSampler

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

    from ..request import Request

# The consequences of a trait, in any stage: what it conflicts with.
EXCLUDED_BY: Mapping[Trait, Reasons] = {
    Trait.KEEPS_DRAFTS: {
        Trait.TEMPERATURE: Why(
            "{me}: with keep=true a sampled text would depend on the requests before it",
            "accept with match:noise=seeded, whose samples do not depend on the drafts, or leave keep out",
            unless=Trait.SEEDED,
        )
    },
    Trait.LIKELIEST_ONLY: {
        Trait.TEMPERATURE: Why(
            "{me!r} accepts the likeliest tokens only, and {kind} is for sampling",
            "accept with speculative or match, or leave temperature out",
        )
    },
    Trait.TIMES_ROUNDS: {
        Trait.SHARED_BY_PROCESSES: Why(
            "{me} decides by the clock, and the processes that share a model have to decide alike",
            "leave {me} out, or use drafts of a fixed length",
        )
    },
}


def check(
    sampler: SpeculativeSampler,
    model: LanguageModel | None = None,
    request: Request | None = None,
    *,
    published: bool = False,
) -> None:
    """Compares each stage with the other stages, with the model and with the request, as far as they are given.

    Args:
        published: an acceptance of the likeliest tokens refuses a temperature. A loop that is run by itself accepts it:
            the candidates are then the likeliest of processed logits.

    Raises:
        SpecError: two of them cannot be combined; it says why, and what can.
        ModelError: a cache cannot read a part of this model's K/V.
    """
    if sampler.texts is not None:
        parties = [party("texts", sampler.texts, published=published)]
    else:
        single = ((slot, getattr(sampler, slot)) for slot in ("draft", "shape", "length", "accept", "cache"))
        stages = [*single, *(("logits", stage) for stage in sampler.logits)]
        parties = [party(slot, stage, published=published) for slot, stage in stages if stage is not None]
        parties += [party("within", drafter, NONE, published=published) for drafter in nested(sampler.draft)]
    if model is not None:
        parties.append(_model_party(model))
    if request is not None:
        parties.append(Party("the request", "request", frozenset(request.extras), kinds=request.extras))
    refuse(parties)


def nested(drafter: Drafter) -> list[Drafter]:
    """The drafters inside `drafter`, whose requirements and conflicts also apply to it."""
    return [one for held in drafter.held for one in (held, *nested(held))]


def party(slot: str, stage: Any, provides: frozenset[Trait] | None = None, *, published: bool = True) -> Party:
    """A stage with its declared traits and their consequences; `provides`: the traits that other stages see."""
    conflicts, traits = dict(stage.conflicts), stage.traits
    for trait in (trait for trait in EXCLUDED_BY if trait in traits):
        if published or trait is not Trait.LIKELIEST_ONLY:
            conflicts |= EXCLUDED_BY[trait]
    return Party(name_of(stage), slot, traits if provides is None else provides, stage.requires, conflicts)


def _model_party(model: LanguageModel) -> Party:
    reason = _not_plain(model)
    has = {Trait.CAUSAL: True, Trait.PLAIN_DECODER: reason is None, Trait.SHARED_BY_PROCESSES: model.processes > 1}
    kinds = {Trait.PLAIN_DECODER: reason or "", Trait.SHARED_BY_PROCESSES: f"{model.processes} processes"}
    return Party(model.name, "model", frozenset(trait for trait, held in has.items() if held), kinds=kinds)


def _not_plain(model: LanguageModel) -> str | None:
    """The reason why a model is not a native text decoder whose queries see all earlier slots; None if it is one."""
    decoder = plain_decoder(model.decoder)
    if decoder is None:
        return "its forwards are not those of the native decoder, or use CUDA graphs, or have an image condition"
    config = decoder.config
    if config.least_window is not None or config.attention_cap is not None or config.attention_sink:
        return "a layer has a sliding window, caps its attention scores, or has a sink of attention"
    if model.imaging is not None or decoder.config.canvas:
        return "it is not a text model"
    return "processes share it" if model.processes > 1 else None
