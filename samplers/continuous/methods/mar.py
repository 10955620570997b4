"""Samples the tokens of an image in a random order, few at first and more as more are known.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    left after step k of K: S cos(pi/2 (k+1)/K);  each token of a step: its own denoising path, from z of what is known

Deviates from the authors' code: `last` chooses which end of a path is the token; theirs is "map".
Exact: distribution: the baseline of the family. Other methods are exact with respect to `mar` with the same `steps`,
`last` and `guidance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError

from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...registry import register
from ._groups import GroupMethod


@register("mar", stage="vectors", paper="arXiv:2406.11838", exact="distribution", checked="golden/mar")
@dataclass(frozen=True)
class MAR(GroupMethod):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (64, 32, 16, 8)}

    steps: Annotated[int, "K, at most one a token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "the token, at a path's end: map, x1 or noise"] = "map"
    head: Annotated[int | None, "transitions of the head; none takes the model's"] = None

    def check_model(self, model: ContinuousModel) -> None:
        if model.backbone.next_token:
            raise SpecError(
                f"mar samples several tokens a step, and {model.name} predicts each from all before it",
                hint="use sequential; seeded_jacobi and cspd:mode=exact take fewer forwards",
            )
