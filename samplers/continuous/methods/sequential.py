"""Samples the vectors of an image one after the other: `mar` with as many steps as there are tokens.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

Exact: distribution: one token per step, each conditioned on all before it; the slowest schedule.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...registry import register
from .groups import GroupMethod


@register("sequential", exact="distribution", checked="hand")
class Sequential(GroupMethod):
    steps: ClassVar[int] = 1 << 20  # type: ignore[misc]  # more than there are tokens: each step samples one

    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "the path's last transition: map (its mean), noise (a sample) or x1 (left out)"] = "map"
    head: Annotated[int | None, "denoising transitions of the head; none: the model's number"] = None
    head_to: Annotated[
        int | None, "transitions at the last step, falling evenly from head; none: head at every step"
    ] = None
