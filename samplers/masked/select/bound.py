"""Commits confident candidates, and as many others as a bound on their joint probability allows.

Nemotron-Labs-Diffusion, https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B (as engines that serve it decode)

    commit {i : score_i >= tau, or score_i >= least and score_i >= 1 - f / (r_i + 2)}, or the best if there is none

r_i = 0, 1, ... is the rank of the score in the block. The second bound is that of `factor` at f = 2.
Exact: no; `tau=1,least=1` leaves only the tokens that the model is certain of.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from ...ops.rank import descending
from ...registry import register
from ..contracts import Canvas, Proposal, Select


@register(
    "bound",
    paper="https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B",
    checked="reference:reference.naive_selects.bound",
)
class Bound(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"f": (2.0, 1.0, 0.5), "least": (0.45, 0.7)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"f": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)}

    tau: Annotated[float, "candidates with at least this score are committed, a probability"] = 0.9
    least: Annotated[float, "least score of the candidates that the bound admits, a probability"] = 0.45
    f: Annotated[float, "upper bound of (r + 2)(1 - score), r the rank of the score"] = 2.0

    def __post_init__(self) -> None:
        self.require("tau", "least", least=0, most=1)
        self.require("f", least=0)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        score, rank = proposal.score, descending(proposal.score)[1]
        bounded = (score >= self.least) & (score >= 1 - self.f / (rank + 2))
        return ((score >= self.tau) | bounded) & proposal.eligible
