"""Jacobi iterations over vectors: a fixed noise of each token makes of it a function of the tokens before it.

Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving, https://arxiv.org/abs/2002.03629

    x_j <- f(x_1 .. x_(j-1), e_j),  e_j the noise of token j, the same in every round;  for all j of a window at once

The fixed point is the one picture that `mar` draws with this noise. A group is committed once what it was drawn from
changed by no more than `tol` with the last round; the first group of a window always is.

Deviates from the paper, which solves equations without noise. Tokens that were never drawn are not looked at.
Exact: no, but as near to `mar` with the same steps, last, guidance and head as `tol` makes it; `tol=0` gives its
pictures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...ops.denoising_paths import Last, walk, width
from ...ops.unmasking import Guidance
from ...registry import register
from ..contracts import Easel, Round
from ._ahead import Ahead, contexts, numbered


@dataclass(frozen=True, slots=True, eq=False)
class Iterate:
    """What the last round drew, and did not commit."""

    latents: Tensor  # [n, S, d]
    drawn: Tensor  # [n, S] bool


@register("seeded_jacobi", stage="vectors", paper="arXiv:2002.03629", checked="hand")
@dataclass(frozen=True)
class SeededJacobi(Ahead):
    window: Annotated[int, "groups that are drawn at once"] = 8
    tol: Annotated[float, "how much a number may change for its token to count as settled, in units of the tokens"] = (
        1e-3
    )
    steps: Annotated[int, "of the schedule; more than there are tokens are not taken"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "what a token is: map, x1 or noise"] = "map"
    head: Annotated[int | None, "transitions of the head; none takes the model's"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise SpecError(f"seeded_jacobi: window must be at least 1, got {self.window}")
        if not (self.tol >= 0 and math.isfinite(self.tol)):
            raise SpecError(f"seeded_jacobi: tol must be at least 0, got {self.tol}")

    @property
    def exact(self) -> str:
        return "relaxed" if self.tol else "distribution"

    def start(self, easel: Easel) -> Iterate:
        return Iterate(easel.painting.latents.clone(), torch.zeros_like(easel.painting.known()))

    def round(self, easel: Easel, state: Iterate) -> Round:
        painting = easel.painting
        groups = self.ahead(easel, self.window)
        number, known = numbered(groups), painting.known()
        latents = torch.where(known[..., None], painting.latents, state.latents)
        states, rows = contexts(easel, groups, latents, known | state.drawn)
        painting.count()
        wanted = number < len(groups)
        with easel.watch("head"):
            noise = painting.noise(wanted, "token", width(easel.head))
            made = walk(easel.head, states, noise, temperature=easel.request.temperature, last=self.last)
            change = torch.full_like(latents[..., 0], math.inf)
            change[wanted] = (made - latents[wanted]).abs().amax(1)
            settled = (change <= self.tol) & state.drawn
            # A group behind one that changed was drawn from something else than what is committed.
            first = torch.where(wanted & ~settled, number, len(groups)).amin(1, keepdim=True)
            final = wanted & (number <= first)
        state.latents[wanted], state.drawn[wanted] = made, True
        painting.commit(final, made[final[wanted]])
        behind = number > 0  # the first group is `mar`'s own
        return Round(
            drafted=(wanted & behind).sum(1).cpu().numpy(),
            accepted=(final & behind).sum(1).cpu().numpy(),
            contexts=rows,
        )
