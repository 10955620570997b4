"""Checks which stages, models and requests of the masked loop work together, and that distributions are finite.

`check` compares the traits of all pairs. `demand_finite` and `mask_chosen` are for tokens chosen by values that are not
finite, and for the mask id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.cuda_graphs.runner import native
from pardec.models.errors import ModelError, PardecError, SpecError

from ..cards import name_of
from ..ops.distribution import Distribution
from ..request import Request
from ..traits import NONE, Party, Reasons, Trait, Why, refuse
from .canvas import Canvas, Update
from .contracts import Cache, MaskedSampler, Stage

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
