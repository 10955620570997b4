"""What the masked loop refuses to commit, by name: what numbers that are not finite chose, and the mask id."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import ModelError, PardecError, SpecError

from ..cards import name_of
from ..ops.distribution import Distribution
from .canvas import Canvas
from .forward import MaskedForward
from .writing import Writing


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A law that a step chooses tokens by."""

    stage: Any  # that made it; None is the model
    distribution: Distribution
    positions: Tensor  # [B, K] absolute
    which: Tensor  # [B, K] bool: those of which a token may be committed


def demand_finite(highest: float, distributions: Sequence[Read], forward: MaskedForward) -> None:
    """Raises what names the model, the argument or the stage, where a token has no distribution to come from.

    `highest` is what `asking` has added up; what nobody reads, such as the mask id's own logit, may be anything.
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
    if (found := forward.failure()) is not None:
        return found
    if empty and forward.allowed is not None:
        return SpecError(f"{what} at {where}: of what is allowed there, {forward.model.name} rules out all")
    return ModelError(f"{what} at {where}, by {forward.model.name}")


def mask_chosen(error: SpecError, written: Sequence[tuple[Any, Writing | None]], canvas: Canvas) -> SpecError:
    """`error` with the name of the stage that chose the mask id, of those whose writings they are."""
    for stage, writing in written:
        if writing is not None and ((writing.tokens == canvas.mask_id) & writing.which).any():
            return SpecError(f"{error} by {name_of(stage)}, a stage of the sampler", error.hint)
    return error
