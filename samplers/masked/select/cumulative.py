"""Commits the most confident candidates as long as the product of their probabilities is high enough.

Nemotron-Labs-Diffusion, https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B (as engines that serve it decode)

    along the order of the scores, commit the longest run 1..m with score_1 * ... * score_m >= tau; the first always

Exact: no; tau = 1 leaves only the tokens that the model is certain of.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from ...ops.rank import descending
from ...registry import register
from ..contracts import Canvas, Proposal, Select


@register(
    "cumulative",
    paper="https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B",
    checked="reference:reference.naive_selects.cumulative",
)
class Cumulative(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.9, 0.8, 0.6, 0.95)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.98, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2)}

    tau: Annotated[float, "least product of the committed probabilities"] = 0.9

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        ordered, rank = descending(proposal.score)
        count = (ordered.clamp(min=0).cumprod(1) >= self.tau).sum(1, keepdim=True)  # a product never rises
        return (rank < count) & proposal.eligible
