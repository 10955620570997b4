"""Builds the verify loop's sampler from a parsed spec; checks which stages, models and requests work together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pardec.models.cuda_graphs.runner import plain_decoder
from pardec.models.errors import SpecError

from ..cards import AUTOREGRESSIVE, SINGLE, name_of
from ..limits import check_nodes
from ..spec import Spec, parse
from ..spec_values import add_default, build_method, by_stage, check_bases, exactness, full, refuse_doubles
from ..traits import NONE, Party, Reasons, Trait, Why, refuse
from .contracts import Acceptance, Cache, Drafter, Length, Logits, Shape, SpeculativeSampler, Texts

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
        return "a layer has a sliding window, caps its attention scores, or has an attention sink"
    if model.imaging is not None or decoder.config.canvas:
        return "it is not a text model"
    return "processes share it" if model.processes > 1 else None


_BASES = {
    "draft": Drafter,
    "shape": Shape,
    "length": Length,
    "logits": Logits,
    "accept": Acceptance,
    "cache": Cache,
    "texts": Texts,
}
_ORDER = ("greedy", "distribution", "relaxed")  # promises, the strictest first


def build(parsed: Spec, *, sampling: bool = False) -> SpeculativeSampler:
    """Builds the sampler, one object per stage; `sampling` chooses the acceptance if the spec names none.

    Raises SpecError for two policies for one stage, a cache without `@`, or stages that cannot be combined.
    """
    stages = by_stage(parsed, "ar")
    refuse_doubles(parsed, stages)
    check_bases(stages, _BASES)
    if stages["texts"]:
        return _of_texts(parsed, *stages["texts"][0])
    add_default(stages, "draft", "sequential", "ar")
    drafter = stages["draft"][0][1]
    add_default(stages, "accept", drafter.default_acceptance or ("speculative" if sampling else "greedy"), "ar")
    if Trait.TAKES_SHAPE in drafter.provides:
        add_default(stages, "shape", "chain", "ar")
    order = [named for stage in AUTOREGRESSIVE for named in stages[stage]]
    promises = [exactness(name, policy, "ar") for name, policy in order]
    if not sampling:
        promises = ["greedy" if word == "distribution" else word for word in promises]  # p is a point mass
    methods: dict[str, Any] = {stage: tuple(method for _, method in named) for stage, named in stages.items()}
    chosen = {stage: each[0] if stage in SINGLE else each for stage, each in methods.items() if each}
    parts = tuple(full(*named) for named in order)
    spec = Spec(parts[:-1], parts[-1]) if stages["cache"] else Spec(parts)
    sampler = SpeculativeSampler(spec, max(promises, key=_ORDER.index), **chosen)
    check(sampler)
    if sampler.shape is not None and (nodes := sampler.shape.width(drafter.k) - 1) > drafter.k:  # a chain fits the text
        check_nodes(stages["shape"][0][0], nodes)
    for stage in sampler.stages:
        stage.check(sampler)
    return sampler


def _of_texts(parsed: Spec, name: str, texts: Texts) -> SpeculativeSampler:
    """The sampler of a `texts` method, which has its own loop and no other stage."""
    if len(parsed.every) > 1:
        others = ", ".join(part.name for part in parsed.every if part.name != name)
        raise SpecError(f"{name!r} has its own loop and cannot be combined with {others}", hint=f"write {name!r} alone")
    draft, accept = (build_method(parse(each).parts[0], "ar") for each in ("sequential", "greedy"))
    return SpeculativeSampler(Spec((full(name, texts),)), exactness(name, texts, "ar"), draft, accept, texts=texts)
