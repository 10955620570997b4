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
from ..ops.distribution import Law
from .canvas import Canvas, Writing
from .forward import Asking


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A law that a step chooses tokens by."""

    stage: Any  # that made it; None is the model
    law: Law
    positions: Tensor  # [B, K] absolute
    which: Tensor  # [B, K] bool: those of which a token may be committed


def demand_finite(highest: float, laws: Sequence[Read], asking: Asking) -> None:
    """Raises what names the model, the argument or the stage, where a token has no distribution to come from.

    `highest` is what `asking` has added up; what nobody reads, such as the mask id's own logit, may be anything.
    """
    if math.isfinite(highest):
        return
    for read in laws:
        wrong = read.which & ~finite.sound(read.law.logits)
        if wrong.any():
            raise _unsound(read, wrong, asking)
    asking.highest = torch.zeros_like(asking.highest)


def _unsound(read: Read, wrong: Tensor, asking: Asking) -> PardecError:
    """The error for the first position that is `wrong` [B, K]."""
    row, column = wrong.nonzero()[0].tolist()
    where = f"position {int(read.positions[row, column])} of row {asking.canvas.rows[row]}"
    empty = float(read.law.logits[row, column].amax()) == -math.inf
    what = "every token is ruled out" if empty else "logits are NaN or infinite"
    if read.stage is not None:
        return SpecError(
            f"{what} at {where} after {name_of(read.stage)}, a stage of the sampler",
            "the logits that it was given were finite: leave the stage out, or mend it",
        )
    if (found := asking.failure()) is not None:
        return found
    if empty and asking.allowed is not None:
        return SpecError(f"{what} at {where}: of what is allowed there, {asking.model.name} rules out all")
    return ModelError(f"{what} at {where}, by {asking.model.name}")


def mask_chosen(error: SpecError, written: Sequence[tuple[Any, Writing | None]], canvas: Canvas) -> SpecError:
    """`error` with the name of the stage that chose the mask id, of those whose writings they are."""
    for stage, writing in written:
        if writing is not None and ((writing.tokens == canvas.mask_id) & writing.which).any():
            return SpecError(f"{error} by {name_of(stage)}, a stage of the sampler", error.hint)
    return error
