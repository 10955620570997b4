"""Jacobi iterations over vectors: with fixed noise each token is a function of the tokens before it.

Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving, https://arxiv.org/abs/2002.03629

    x_j <- f(x_1 .. x_(j-1), e_j),  e_j the noise of token j, the same in every round;  for all j of a window at once

The fixed point is the image that `mar` samples with this noise. A group is committed once the tokens before it changed
by no more than `tol` in the last round; the first group of a window always is.

Deviates from the paper, which solves equations without noise. Tokens that were never sampled are not attended to.
Exact: no, but as near to `mar` with the same steps, last, guidance, head and head_to as `tol` makes it; `tol=0` gives
its images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import download, upload
from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...registry import register
from ..contracts import ContinuousContext, RoundResult
from .drafting_ahead import LookaheadMethod, group_indices, group_states


@dataclass(frozen=True, slots=True, eq=False)
class Iterate:
    """The tokens that the last round sampled and did not commit."""

    latents: Tensor  # [n, S, d]
    sampled: Tensor  # [n, S] bool


@register("seeded_jacobi", checked="hand")
class SeededJacobi(LookaheadMethod):
    window: Annotated[int, "groups that are sampled at once"] = 8
    tol: Annotated[float, "a token is settled if no value of it changes by more, in units of the tokens"] = 1e-3
    steps: Annotated[int, "steps of the schedule, at most one per token; next-token models take one per token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "the path's last transition: map (its mean), noise (a sample) or x1 (left out)"] = "map"
    head: Annotated[int | None, "denoising transitions of the head; none: the model's number"] = None
    head_to: Annotated[
        int | None, "transitions at the last step, falling evenly from head; none: head at every step"
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("window", least=1)
        if not (self.tol >= 0 and math.isfinite(self.tol)):
            raise SpecError(f"seeded_jacobi: tol must be at least 0, got {self.tol}")

    @property
    def exact(self) -> str:
        return "relaxed" if self.tol else "distribution"

    def start(self, context: ContinuousContext) -> Iterate:
        return Iterate(context.images.latents.clone(), torch.zeros_like(context.images.known()))

    def round(self, context: ContinuousContext, state: Iterate) -> RoundResult:
        images = context.images
        groups = self.next_groups(context, self.window)
        number, known = group_indices(groups), images.known()
        latents = torch.where(known[..., None], images.latents, state.latents)
        states, rows = group_states(context, groups, latents, known | state.sampled)
        images.add_forward()
        wanted = number < len(groups)
        with context.watch("head"):
            steps = upload(np.stack([group.step for group in groups]), number.device)
            step = download(steps.gather(0, number.clamp(max=len(groups) - 1).T).T[wanted])
            tokens = self.sample_tokens(context, states, wanted, step)
            change = torch.full_like(latents[..., 0], math.inf)
            change[wanted] = (tokens - latents[wanted]).abs().amax(1)
            settled = (change <= self.tol) & state.sampled
            # A group after one that changed was sampled from other tokens than those committed.
            first = torch.where(wanted & ~settled, number, len(groups)).amin(1, keepdim=True)
            final = wanted & (number <= first)
        state.latents[wanted], state.sampled[wanted] = tokens, True
        images.commit(final, tokens[final[wanted]])
        later = number > 0  # the first group is `mar`'s own
        return RoundResult(
            drafted=download((wanted & later).sum(1)),
            accepted=download((final & later).sum(1)),
            contexts=rows,
        )
