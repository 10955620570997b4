"""Scores a candidate by its probability and by the share of known tokens around it.

d2Cache: Accelerating Diffusion-Based LLMs via Dual Adaptive Caching, https://arxiv.org/abs/2509.23094

    score_i = p(x_i) density_i,  density_i = sum_j [j is known] g(i - j) / sum_d g(d),  g(d) = exp(-d^2 / (2 sigma^2))

Positions before a row count as known, and positions after it like its last one. A small `sigma` decodes from left
to right, a large one in order of confidence. Without a select in the spec `fixed` is taken, as published: scores are no
probabilities.

Deviates from the authors' code, which goes no further to either side than the length that is generated.
Exact: no; `sequential` is defined in order of confidence.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch

from ...host_transfer import upload
from ...ops.confidence import certainty_density
from ...registry import register
from ..contracts import Canvas, Evidence, Proposal, Propose


@register("density", checked="reference:reference.naive_dependence.density")
class Density(Propose):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"sigma": (10.0, 2.0, 40.0)}

    sigma: Annotated[float, "standard deviation of the Gaussian, in positions"] = 10.0

    def __post_init__(self) -> None:
        self.require("sigma", least=0.1, most=10_000, hint="sigma=10 is the published value")

    @property
    def default_select(self) -> str:
        return "fixed"

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        tokens = evidence.draw(canvas)
        total = upload(canvas.total, tokens.device)
        density = certainty_density(~canvas.open[:, :-1], total, self.sigma)
        around = torch.nn.functional.pad(density, (0, 1)).gather(1, evidence.positions)
        return evidence.propose(tokens, evidence.distribution.probability(tokens) * around)
