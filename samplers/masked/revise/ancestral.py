"""Draws all positions of a noisy canvas anew at every step, from the posterior of uniform noise.

Generalized Interpolating Discrete Diffusion, https://arxiv.org/abs/2503.04482
for noise without masks, as in
Sumi: Open Uniform Diffusion Language Model from Scratch, https://arxiv.org/abs/2606.19005

    q(z_t = v | x) = a_t [v = x] + (1 - a_t) / V
    p(z_s = v | z_t) ~ q(z_s = v | x_hat) q(z_t | z_s = v),  x_hat = softmax(logits / temperature)
    linear: a = 1e-4 .. 1 - 1e-4 in `steps` equal parts;  cosine: a = 1/2 + cos(pi t) / 2, t = 0.999 .. 0.001
    the log-odds of a are bounded by `low` and `high`

A block begins with random tokens, and its positions are drawn independently at each step. It takes `steps` forwards.
Read in generation_sumi.py of tohoku-nlp/sumi-7b, whose defaults these are; the cosine schedule is there too.

Deviates from the authors' code: at temperature 0, x_hat is the likeliest token alone, where theirs divides logits by
1e-6. The posterior is drawn by its two terms, which is the same distribution. Filters such as top-p change x_hat.
Exact: no.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError

from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Canvas, Proposal, Revise, Revision
from ..ops.uniform_noise import (
    CONFLICTS,
    REQUIRES,
    NoisyState,
    Schedule,
    alphas,
    current_tokens,
    posterior_draw,
    whole_block,
    wide_column,
)


@register("ancestral", checked="reference:reference.naive_uniform.decode")
class Ancestral(Revise):
    provides = frozenset({Trait.WRITES_BLOCKS})
    requires: ClassVar[Reasons] = REQUIRES
    conflicts: ClassVar[Reasons] = CONFLICTS
    default_select = "defer"
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (32, 64, 128)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (16, 32, 64, 128, 256)}

    steps: Annotated[int, "forwards of a block"] = 128
    schedule: Annotated[Schedule, "how the share of clean tokens grows from step to step"] = "linear"
    low: Annotated[float, "least log-odds of that share"] = -9.0
    high: Annotated[float, "largest log-odds of that share"] = 9.0

    def __post_init__(self) -> None:
        self.require("steps", least=1)
        if not self.low <= self.high:
            raise SpecError(f"ancestral: low must be at most high, got low={self.low} and high={self.high}")

    @cached_property
    def alphas(self) -> np.ndarray:
        return alphas(self.steps, self.schedule, self.low, self.high)

    def start(self, canvas: Canvas) -> NoisyState:
        return NoisyState.of(canvas)

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: NoisyState) -> Revision:
        evidence, taken = proposal.evidence, state.steps_taken(canvas)
        current, device = current_tokens(proposal, canvas), chosen.device
        if evidence.request.temperature:
            chance = evidence.filtered.probability(current)
        else:
            chance = (current == proposal.tokens).float()
        step = np.minimum(taken, self.steps - 1)
        before, after = (wide_column(self.alphas[at], device) for at in (step, step + 1))
        uniform = evidence.request.source.uniform(canvas.rows, canvas.step, canvas.window, "posterior", 3)
        tokens = posterior_draw(current, proposal.tokens, chance, before, after, uniform, evidence.distribution.vocab)
        return whole_block(tokens, evidence.filtered.probability(tokens), taken + 1 < self.steps, canvas)
