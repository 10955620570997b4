"""Samples the tokens of an image in a random order, few at first and more as more are known.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    left after step k of K: S cos(pi/2 (k+1)/K);  each token of a step: its own denoising path, from z of what is known

With `head_to` the head takes fewer transitions from step to step, as the image fills (DiSA: Diffusion Step Annealing
in Autoregressive Image Generation, https://arxiv.org/abs/2505.20297, with `head=50,head_to=5`):

    transitions at step k = 0 .. K-1: head_to + floor((K-1-k) / (K-1) (head - head_to))

With `order=local` a step's tokens are far apart and near to known ones (LPD: Locality-aware Parallel Decoding for
Efficient Autoregressive Image Generation, https://arxiv.org/abs/2507.01957; see `ops/locality.py`), in the sizes of the
same schedule; LPD's own models and group sizes are not meant.

Deviates from the authors' code: `last` chooses which end of a path is the token; theirs is "map".
Exact: distribution: the baseline of the family. Other methods are exact with respect to `mar` with the same `steps`,
`last`, `guidance`, `head` and `head_to`, in a random order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError

from ...ops.denoising_paths import Last
from ...ops.locality import local_order
from ...ops.unmasking import Guidance
from ...registry import register
from ..contracts import ContinuousContext
from ._groups import GroupMethod


@register("mar", stage="vectors", paper="arXiv:2406.11838", exact="distribution", checked="golden/mar")
@dataclass(frozen=True)
class MAR(GroupMethod):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (64, 32, 16, 8)}

    steps: Annotated[int, "K, at most one a token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "the token, at a path's end: map, x1 or noise"] = "map"
    head: Annotated[int | None, "transitions of the head; none takes the model's"] = None
    head_to: Annotated[int | None, "transitions at the last step, evenly down to them; none: the same at each"] = None
    order: Annotated[Literal["random", "local"], "of the tokens"] = "random"

    def check_model(self, model: ContinuousModel) -> None:
        super().check_model(model)
        if model.backbone.next_token:
            raise SpecError(
                f"mar samples several tokens a step, and {model.name} predicts each from all before it",
                hint="use sequential; seeded_jacobi and cspd:mode=exact take fewer forwards",
            )
        if self.order == "local" and model.backbone.causal:
            raise SpecError(f"mar: {model.name} samples in raster order", hint="leave order out")

    def start(self, context: ContinuousContext) -> None:
        if self.order == "random":
            return
        images, (rows, columns) = context.images, context.model.imaging.layout.grid
        index = torch.arange(images.tokens).expand(len(images), images.tokens)
        keys = images.source.uniform(images.rows, np.zeros_like(images.rows), index, "order").cpu().numpy()
        bounds = self.schedule(context).bounds
        ranks = np.stack([local_order(rows, columns, bounds, row) for row in keys])
        images.rank = torch.from_numpy(ranks).to(images.device)
