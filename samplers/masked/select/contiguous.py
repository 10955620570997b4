"""Commits the block from its first open position up to the first candidate that is not confident.

DMax: Aggressive Parallel Decoding for dLLMs, https://arxiv.org/abs/2604.08302

    commit the open positions i_1 < ... < i_m of the block with score >= tau at each of them; at least i_1

Exact: no; `tau=1` goes from left to right unless the model is certain.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from ...registry import register
from ..contracts import Canvas, Proposal, Select


@register("contiguous", checked="reference:reference.naive_revise.dmax")
class Contiguous(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.5, 0.7, 0.9, 0.3)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3)}

    tau: Annotated[float, "least score of a committed candidate, a probability"] = 0.5

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        open_ = proposal.eligible
        run = ((proposal.score >= self.tau) | ~open_).cumprod(1).bool()  # committed positions do not end the run
        return open_ & (run | (open_.cumsum(1) == 1))
