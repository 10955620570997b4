"""What the masked loop refuses to commit: tokens chosen by values that are not finite, and the mask id."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import ModelError, PardecError, SpecError

from ..cards import name_of
from ..ops.distribution import Distribution
from ..request import Request
from .canvas import Canvas, Update
from .contracts import Cache, MaskedSampler, Stage
from .predict import MaskedForward

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel


def refuse_images(sampler: MaskedSampler) -> None:
    """Raises SpecError for stages that cannot draw images."""
    if sampler.inputs:
        raise SpecError(
            f"{name_of(sampler.inputs[0])} adds to the inputs of masks, and an image's begin with its condition",
            "leave that stage out",
        )
    if type(sampler.cache).layer_reuse is not Cache.layer_reuse:
        raise SpecError(
            f"{name_of(sampler.cache)} keeps what layers compute at each position, and an image's begin with its "
            "condition",
            "use another cache",
        )
    if sampler.query is not None:
        raise SpecError(
            f"{name_of(sampler.query)} leaves out what comes after a block of text, and the cells of an image stand "
            "on all of its sides",
            "leave that stage out",
        )
    for stage in sampler.reading:
        raise SpecError(
            f"{name_of(stage)} reads attention by position, and an image's rows begin with its condition",
            "leave that stage out",
        )


def refuse_positions(sampler: MaskedSampler, request: Request) -> None:
    """Raises SpecError for requests that go by positions, where a stage moves tokens."""
    if (moving := sampler.moving) is None:
        return
    requested = {
        "log-probabilities are recorded": request.logprobs is not None,
        "tokens are allowed": request.allowed is not None or any(request.constrained_spans),
        "conditions of images are laid out": bool(request.conditions),
    }
    for what in (what for what, needed in requested.items() if needed):
        raise SpecError(f"{what} position by position, and {name_of(moving)} moves tokens", "leave one of them out")


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A distribution that a step chooses tokens by."""

    stage: Stage | None  # the one that made it; None is the model
    distribution: Distribution
    positions: Tensor  # [B, K] absolute
    which: Tensor  # [B, K] bool: where a token may be committed


def refuse_blocks(sampler: MaskedSampler, model: LanguageModel) -> None:
    """Raises SpecError where the sampler moves blocks that the model's attention fixes."""
    block = sampler.block
    if block is None:
        return
    if model.follows_canvas or (model.decoding_config.attention == "block-causal" and not block.keeps_grid):
        raise SpecError(
            f"{name_of(block)} moves blocks, and {model.name} has {model.decoding_config.attention} attention, which "
            "fixes them",
            "leave it out",
        )


def demand_finite(highest: float, distributions: Sequence[Read], forward: MaskedForward) -> None:
    """Raises an error that names the model, the argument or the stage where logits are not finite.

    `highest` is the sum that `forward` keeps; logits that nobody reads, such as that of the mask id, may be anything.
    """
    if math.isfinite(highest):
        return
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
    what = "every token is ruled out" if empty else "logits are NaN or infinite"
    if read.stage is not None:
        return SpecError(
            f"{what} at {where} after {name_of(read.stage)}, a stage of the sampler",
            "the logits that it was given were finite: leave the stage out, or mend it",
        )
    if (error := forward.failure()) is not None:
        return error
    if empty and forward.limits:
        return SpecError(f"{what} at {where}: of what is allowed there, {forward.model.name} rules out all")
    return ModelError(f"{what} at {where}, by {forward.model.name}")


def mask_chosen(error: SpecError, writings: Sequence[tuple[Stage, Update | None]], canvas: Canvas) -> SpecError:
    """`error` with the name of the stage whose writing has the mask id."""
    for stage, writing in writings:
        if writing is not None and ((writing.tokens == canvas.mask_id) & writing.which).any():
            return SpecError(f"{error} by {name_of(stage)}, a stage of the sampler", error.hint)
    return error
