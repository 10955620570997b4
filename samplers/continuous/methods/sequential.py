"""Draws the vectors of a picture one after the other: `mar` with as many steps as there are tokens.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

Exact: distribution: what a model of vectors says of a picture in a given order, and the longest way to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...registry import register
from ..contracts import Easel, Round
from ._groups import Groups


@register("sequential", stage="vectors", paper="arXiv:2406.11838", exact="distribution", checked="hand")
@dataclass(frozen=True)
class Sequential(Groups):
    steps: ClassVar[int] = 1 << 20  # type: ignore[misc]  # more than there are tokens: each step draws one

    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "what a token is: map, x1 or noise"] = "map"
    head: Annotated[int | None, "transitions of the head; none takes the model's"] = None

    def start(self, easel: Easel) -> None:
        return None

    def round(self, easel: Easel, state: None) -> Round:
        self.draw(easel)
        return Round()
