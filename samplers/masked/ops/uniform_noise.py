"""Decoding with uniform noise: the random tokens of a canvas, the schedule of the noise, and the posterior of one step.

q(z_t = v | x) = alpha_t [v = x] + (1 - alpha_t) / V,  alpha from 0, noise, to 1, clean text
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...rng import Source, wide
from ...traits import Reasons, Trait, Why
from ..canvas import Canvas, Revision, Update

if TYPE_CHECKING:
    from ..contracts import Proposal

REQUIRES: Reasons = {
    Trait.MAY_WAIT: Why(
        "{me} writes all tokens itself, and the select is {other!r}, which would have no effect", "leave the select out"
    ),
    Trait.RANDOM_CANVAS: Why(
        "{me} is for models trained on uniform noise, such as Sumi, and {other} has a mask token",
        "use remdm or wino, which reopen tokens of masked models",
    ),
    Trait.WHOLE_BLOCK: Why(
        "{me} draws every position anew at each step, and {other} does not compute all of them",
        "use a cache that does, such as none or dual",
    ),
}
_ONE_OUT = "leave {other} out"
CONFLICTS: Reasons = {
    Trait.ACTS_BETWEEN_STEPS: Why("{me} writes the whole block at every step, and {does}", _ONE_OUT),
    Trait.MOVES_BLOCKS: Why("{me} counts its steps from a block's first, and {does}", _ONE_OUT),
    Trait.ADDS_TO_INPUTS: Why("{me} has no masks after its first step, and {does}", _ONE_OUT),
    **dict.fromkeys(
        (Trait.ALLOWED_TOKENS, Trait.GRAMMAR, Trait.LATE_END),
        Why("{me} may leave a random token anywhere, and {does}", "leave out what restricts the tokens"),
    ),
}
Schedule = Literal["linear", "cosine"]
_EDGE, _COSINE_EDGE, _LEAST = 1e-4, 1e-3, 1e-6  # bounds of the published schedules


def random_tokens(
    source: Source, rows: np.ndarray, step: np.ndarray, positions: Tensor, vocab: int, purpose: str = "noise"
) -> Tensor:
    """A token for each of `positions` [B, K], each of the `vocab` equally likely: [B, K] int64."""
    return tokens_of(source.uniform(rows, step, positions, purpose), vocab)


def tokens_of(uniform: Tensor, vocab: int) -> Tensor:
    """The tokens of uniforms in (0, 1)."""
    return (uniform * vocab).long().clamp(max=vocab - 1)


def alphas(steps: int, schedule: Schedule, low: float, high: float) -> np.ndarray:
    """[steps + 1] float64: alpha before each step and after the last, ascending; `low`, `high` bound its log-odds."""
    if schedule == "linear":
        alpha = np.linspace(_EDGE, 1 - _EDGE, steps + 1)
    else:
        alpha = 0.5 + 0.5 * np.cos(np.pi * np.linspace(1 - _COSINE_EDGE, _COSINE_EDGE, steps + 1))
    alpha = np.clip(alpha, _LEAST, 1 - _LEAST)
    odds: np.ndarray = 1 / (1 + np.exp(-np.clip(np.log(alpha) - np.log1p(-alpha), low, high)))
    return odds


def posterior_draw(
    current: Tensor, predicted: Tensor, chance: Tensor, before: Tensor, after: Tensor, uniform: Tensor, vocab: int
) -> Tensor:
    """Draws z_s from p(v | z_t) ~ (a_s x_v + (1 - a_s) / V) (r [v = z_t] + (1 - r) / V), r = a_t / a_s.

    The product has two terms: z_t itself, of weight r q_s(z_t), and v drawn from q_s, of weight (1 - r) / V. Together
    they weigh q_t(z_t), q being the noisy x.

    Args:
        current: [B, W] z_t.
        predicted: [B, W] tokens drawn from x.
        chance: [B, W] x of z_t.
        before, after: [B, 1] a_t and a_s.
        uniform: [B, W, 3] in (0, 1).
    """
    noise = (1 - after) / vocab
    keeps = before / after * (after * chance + noise) / (before * chance + (1 - before) / vocab)
    drawn = torch.where(uniform[..., 1] < after, predicted, tokens_of(uniform[..., 2], vocab))
    return torch.where(uniform[..., 0] < keeps, current, drawn)


@dataclass
class NoisyState:
    """[B]: the clock when each row's block was entered."""

    begun: np.ndarray

    @classmethod
    def of(cls, canvas: Canvas) -> NoisyState:
        """The state before the first step."""
        return cls(np.zeros_like(canvas.step))

    def steps_taken(self, canvas: Canvas) -> np.ndarray:
        """[B]: the steps that each row has taken in its block; called once in each step."""
        self.begun = np.where(canvas.block_started, canvas.step, self.begun)
        taken: np.ndarray = canvas.step - self.begun
        return taken


def current_tokens(proposal: Proposal, canvas: Canvas) -> Tensor:
    """[B, W]: the tokens that the forward was given; open positions had random ones."""
    source, vocab = proposal.evidence.request.source, proposal.evidence.distribution.vocab
    noise = random_tokens(source, canvas.rows, canvas.step, canvas.window, vocab)
    return torch.where(canvas.eligible, noise, canvas.tokens.gather(1, canvas.window))


def whole_block(tokens: Tensor, scores: Tensor, hold: np.ndarray, canvas: Canvas) -> Revision:
    """Writes `tokens` [B, W] at all positions of the block but given ones; rows in `hold` [B] stay in it."""
    rewrite, commit = (Update(which, tokens, scores) for which in (canvas.committed, canvas.eligible))
    return Revision(rewrite=rewrite, commit=commit, hold=upload(hold, tokens.device))


def wide_column(values: np.ndarray, device: torch.device) -> Tensor:
    """[B, 1] of `values` [B] on a device, in float64 where it has that."""
    return wide(upload(values, device))[:, None]
