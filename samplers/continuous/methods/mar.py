"""Draws the tokens of a picture in a random order, few at first and more the more are known.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    left after step k of K: S cos(pi/2 (k+1)/K);  each token of a step: its own denoising path, from z of what is known

Deviates from the authors' code: `last` says what a token is; theirs is "map".
Exact: distribution: the baseline of the family. What others keep, they keep of `mar` with the same `steps`, `last` and
`guidance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...registry import register
from ..contracts import Easel, Round
from ._groups import Groups


@register("mar", stage="vectors", paper="arXiv:2406.11838", exact="distribution", checked="golden/mar")
@dataclass(frozen=True)
class MAR(Groups):
    steps: Annotated[int, "K; more than there are tokens are not taken"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "what a token is: map, x1 or noise"] = "map"
    head: Annotated[int | None, "transitions of the head; none takes the model's"] = None

    def start(self, easel: Easel) -> None:
        return None

    def round(self, easel: Easel, state: None) -> Round:
        self.draw(easel)
        return Round()
