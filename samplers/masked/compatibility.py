"""Builds the masked loop's sampler from a parsed spec, and checks which stages, models and requests work together.

`build` fills in the stages that the spec leaves out; `check` compares the traits of all pairs. `demand_finite` and
`mask_chosen` are for tokens chosen by values that are not finite, and for the mask id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.cuda_graphs.runner import native
from pardec.models.errors import ModelError, PardecError, SpecError

from ..cards import MASKED, SINGLE, name_of
from ..ops.distribution import Distribution
from ..request import Request
from ..spec import Spec
from ..spec_values import Named, add_default, by_stage, check_bases, exactness, full, refuse_doubles
from ..traits import NONE, Party, Reasons, Trait, Why, refuse
from .canvas import Canvas, Update
from .contracts import (
    Block,
    Branch,
    Cache,
    Finish,
    Inputs,
    Logits,
    MaskedSampler,
    Propose,
    Query,
    Revise,
    Select,
    Stage,
    Widen,
)

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

    from .predict import MaskedForward


# The consequences of a trait, in any stage: what it requires and what it conflicts with.
REQUIRED_BY: Mapping[Trait, Reasons] = {
    Trait.MOVES_TOKENS: {
        Trait.WHOLE_BLOCK: Why(
            "{me} moves tokens, and {other} does not compute the K/V of the whole block at every forward",
            "use a cache that does, such as block, dual or none",
        )
    },
    Trait.KEEPS_TOKENS: {
        Trait.KV_OF_TOKENS: Why(
            "{me} promises the tokens of the sampler without it, and with {other} these depend on every forward",
            "use @none, @prefix, @dual or, for block-causal models, @block, without refresh",
        )
    },
}
_BY_POSITION = Why("{does} for fixed positions, and {me} moves tokens", "leave one of them out")
EXCLUDED_BY: Mapping[Trait, Reasons] = {
    Trait.MOVES_TOKENS: {
        Trait.GOES_BY_POSITION: Why(
            "{me} moves tokens, and {other} needs them to stay in place", "leave one of them out"
        ),
        **dict.fromkeys((Trait.LOGPROBS, Trait.ALLOWED_TOKENS, Trait.CONDITIONS), _BY_POSITION),
    },
    Trait.KEEPS_TOKENS: {
        Trait.REMEMBERS: Why(
            "{me} promises the tokens of the sampler without it, and {other} depends on every forward",
            "use sequential or threshold, which do not",
        ),
        Trait.COUNTS_FORWARDS: Why("{me} makes fewer forwards, and {other} counts them", "write fall=0"),
    },
    Trait.LEAVE_ONE_OUT: {
        Trait.RANDOM_CANVAS: Why("{me} predicts from further masks, and {other} has no mask token", "leave {me} out"),
        Trait.FOLLOWS_CANVAS: Why(
            "{me} needs leave-one-out predictions, and the attention of {other} depends on which tokens are known",
            "leave {me} out",
        ),
    },
    Trait.READS_ATTENTION: {
        Trait.CONDITIONS: Why(
            "{me} reads attention by position, and an image's rows begin with its condition", "leave {me} out"
        )
    },
    Trait.REUSES_LAYERS: {
        Trait.CONDITIONS: Why(
            "{me} reuses layer outputs by position, and an image's rows begin with its condition",
            "use another cache",
        )
    },
}
_WITH_RULES = tuple(trait for trait in Trait if trait in REQUIRED_BY or trait in EXCLUDED_BY)
_KINDS: Mapping[str, Trait] = {
    "bidirectional": Trait.BIDIRECTIONAL,
    "block-causal": Trait.BLOCK_CAUSAL,
    "windowed-causal": Trait.WINDOWED_CAUSAL,
    "causal-prefix": Trait.CAUSAL_PREFIX,
    "causal": Trait.CAUSAL,
}


def check(
    sampler: MaskedSampler,
    model: LanguageModel | None = None,
    request: Request | None = None,
    *,
    published: bool = False,
) -> None:
    """Compares each stage with the other stages, with the model and with the request, as far as they are given.

    Args:
        published: the cache has to be one for the model's family. A loop that is run by itself, as within another
            sampler, takes every cache that can decode.

    Raises:
        SpecError: two of them cannot be combined; it says why, and what can.
    """
    parties = [party(stage, published=published) for stage in sampler.stages]
    if {Trait.ORDER_OF_SCORES, Trait.KNOWN_SCORES} <= sampler.traits:
        parties.append(Party(name_of(sampler.select), "select", frozenset({Trait.KNOWN_ORDER})))
    if model is not None:
        parties.append(_model_party(model, published=published))
    if request is not None:
        parties.append(Party("the request", "request", frozenset(request.extras), kinds=request.extras))
    refuse(parties)


def party(stage: Stage, *, published: bool = True) -> Party:
    """A stage with its declared traits and their consequences."""
    name, traits = name_of(stage), stage.traits
    requires, conflicts = dict(stage.requires), dict(stage.conflicts)
    for trait in _WITH_RULES:
        if trait in traits:
            requires |= REQUIRED_BY.get(trait, {})
            conflicts |= EXCLUDED_BY.get(trait, {})
    if isinstance(stage, Cache):
        traits |= _of_attention(stage, requires, conflicts, published=published)
    _, kind = getattr(type(stage), "registered", (None, ""))
    return Party(name, kind, traits, requires, conflicts)


def _of_attention(
    cache: Cache, requires: dict[Trait, Why], conflicts: dict[Trait, Why], *, published: bool
) -> frozenset[Trait]:
    """Adds the consequences of the attention that a cache is made for; returns its traits."""
    if cache.attention is None:
        return NONE
    if published:
        requires[_KINDS[cache.attention]] = Why(
            f"the cache {{me!r}} is for {cache.attention} models and {{other}} is {{kind}}",
            '"pardec list samplers --stage cache" shows the others',
        )
    if cache.attention in ("windowed-causal", "causal-prefix"):
        sees = f"and the attention of {cache.attention} models depends on which tokens are known"
        conflicts[Trait.LEAVE_ONE_OUT] = Why(f"{{other}} needs leave-one-out predictions, {sees}", "leave {other} out")
    return frozenset({Trait.STORES_CAUSALLY}) if cache.attention == "causal-prefix" else NONE


def _model_party(model: LanguageModel, *, published: bool) -> Party:
    """A model with its traits: its attention, and the needs of its family."""
    attention = model.decoding_config.attention
    stack = native(model.decoder)
    has = {
        _KINDS[attention]: True,
        Trait.FOLLOWS_CANVAS: model.follows_canvas,
        Trait.RANDOM_CANVAS: model.decoding_config.uniform,
        Trait.SLIDING_LAYERS: stack is not None and stack.config.least_window is not None,
    }
    causal = Why(
        "the cache {other!r} does not store finished text causally, as {me} requires",
        "leave the cache out, or write @causal",
    )
    return Party(
        model.name,
        "model",
        frozenset(trait for trait, present in has.items() if present),
        {Trait.STORES_CAUSALLY: causal} if published and attention == "causal-prefix" else {},
        kinds=dict.fromkeys(_KINDS.values(), attention),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A distribution from which a step chooses tokens."""

    stage: Stage | None  # the stage that made the distribution; None: the model
    distribution: Distribution
    positions: Tensor  # [B, K] absolute
    which: Tensor  # [B, K] bool: where a token may be committed


def demand_finite(distributions: Sequence[Read], forward: MaskedForward) -> None:
    """Raises an error that names the model, the argument or the stage where logits are not finite.

    For a step after which `MaskedForward.highest` is not; logits that nobody reads, such as that of the mask id, may be
    anything.
    """
    for read in distributions:
        wrong = read.which & ~finite.sound(read.distribution.logits)
        if wrong.any():
            raise _unsound(read, wrong, forward)
    forward.highest = torch.zeros_like(forward.highest)


def _unsound(read: Read, wrong: Tensor, forward: MaskedForward) -> PardecError:
    """The error for the first position that is `wrong` [B, K]."""
    row, column = wrong.nonzero()[0].tolist()
    where = f"position {int(read.positions[row, column])} of row {forward.canvas.rows[row]}"
    empty = float(read.distribution.logits[row, column].amax()) == -math.inf
    what = "every token is excluded" if empty else "logits are NaN or infinite"
    if read.stage is not None:
        return SpecError(
            f"{what} at {where} after {name_of(read.stage)}, a stage of the sampler",
            "its input logits were finite: leave the stage out, or fix it",
        )
    if (error := forward.failure()) is not None:
        return error
    if empty and forward.limits is not None and forward.limits.now:
        return SpecError(f"{what} at {where}: {forward.model.name} excludes all tokens that are allowed there")
    return ModelError(f"{what} at {where}, by {forward.model.name}")


def mask_chosen(error: SpecError, writings: Sequence[tuple[Stage, Update | None]], canvas: Canvas) -> SpecError:
    """`error` with the name of the stage whose update has the mask id."""
    for stage, writing in writings:
        if writing is not None and ((writing.tokens == canvas.mask_id) & writing.which).any():
            return SpecError(f"{error} by {name_of(stage)}, a stage of the sampler", error.hint)
    return error


_BASES = {
    "block": Block,
    "branch": Branch,
    "query": Query,
    "inputs": Inputs,
    "logits": Logits,
    "propose": Propose,
    "select": Select,
    "widen": Widen,
    "revise": Revise,
    "finish": Finish,
    "cache": Cache,
}


def build(spec: Spec, *, sampling: bool = False) -> MaskedSampler:
    """Builds the sampler, with one object per stage.

    Raises SpecError for two methods where one is allowed, a cache without `@`, stages that do not go together.
    """
    stages = by_stage(spec, "masked")
    # A class of a user's own may have the methods of its stage without the base class.
    derived = {stage: [one for one in named if isinstance(one[1], Stage)] for stage, named in stages.items()}
    check_bases(derived, _BASES)
    _add_defaults(stages, spec)
    refuse_doubles(spec, stages)
    order = [named for stage in MASKED for named in stages[stage]]
    parts = [full(name, method) for name, method in order]
    greedy = all(exactness(name, method, "masked") == "greedy" for name, method in order)
    each = {stage: tuple(method for _, method in named) for stage, named in stages.items()}
    methods: dict[str, Any] = {
        stage: next(iter(several), None) if stage in SINGLE else several for stage, several in each.items()
    }
    sampler = MaskedSampler(
        Spec(tuple(parts[:-1]), parts[-1]),  # the cache is the last stage, and there is one
        "greedy" if greedy else "relaxed",
        **methods,
    )
    for stage in sampler.stages:
        stage.check(sampler)
    check(sampler)
    return sampler


def fit(sampler: MaskedSampler, model: LanguageModel) -> MaskedSampler:
    """The sampler, and its spec, with unset parameters of its stages taken from the model.
    Raises SpecError for a parameter that this model cannot have.
    """
    new: dict[int, Stage] = {id(stage): stage.fit(model) for stage in sampler.stages}
    if all(stage is new[id(stage)] for stage in sampler.stages):
        return sampler
    values = {name_of(stage): stage for stage in new.values() if hasattr(type(stage), "registered")}
    parts = [full(part.name, values[part.name]) if part.name in values else part for part in sampler.spec.every]
    chosen: dict[str, Any] = {}
    for name in MASKED:
        stage = getattr(sampler, name)
        if stage is None:
            continue
        chosen[name] = new[id(stage)] if name in SINGLE else tuple(new[id(one)] for one in stage)
    return replace(sampler, spec=Spec(tuple(parts[:-1]), parts[-1]), **chosen)


def _add_defaults(stages: dict[str, Named], spec: Spec) -> None:
    """Fills the stages that the spec leaves out; a select may name the proposer and its parameter `of`."""
    defaults = (method.default_select for named in stages.values() for _, method in named)
    add_default(stages, "select", next(filter(None, defaults), "threshold"), "masked")
    select = stages["select"][0][1]
    add_default(stages, "propose", select.default_propose, "masked")
    (name, propose), explicit = stages["propose"][0], {part.name: dict(part.params) for part in spec.parts}
    measures = any(field.name == "of" for field in fields(propose))
    if select.default_of is not None and measures and "of" not in explicit.get(name, {}):
        stages["propose"][0] = name, replace(propose, of=select.default_of)
    add_default(stages, "cache", "none", "masked")
