"""Raises the logit of a token by the credit it gathers while it stays a position's likeliest token.

CreditDecoding: Accelerating Parallel Decoding in Diffusion Large Language Models with Trace Credits,
https://arxiv.org/abs/2510.06133

    C <- beta * C;  C[i, v_i] += p_i(v_i)^gamma at the argmax v_i of every open position i
    l_i <- l_i + alpha * ln(1 + C_i)

Credit is stored as (token, value) pairs, of which a step adds at most one per position, and lasts as long as the
position is open in its block; the published code keeps a matrix over the vocabulary, even beyond the request.
`free=true` is the variant without parameters: gamma = 1 and alpha = beta = 1 - (open positions of the block, as a share
of those at its start).
Exact: no; `alpha=0` changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...limits import MAX_SCALE
from ...ops.distribution import Distribution
from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Evidence, Logits

_PAIRS = 4  # per position at first; doubled when the steps of a block need more. A GPU has all from the start


@dataclass
class Credits:
    """The credit of each row's active block."""

    tokens: Tensor  # [B, W, K] int64
    values: Tensor  # [B, W, K] float32; 0 where the pair is free
    steps: np.ndarray  # [B] steps in the block so far: the most pairs of a position
    size: np.ndarray  # [B] positions open when the block was entered
    entered: np.ndarray  # [B] bool: the block was entered at this step
    share: np.ndarray  # [B] float32: committed positions of the block, as a share of `size`


@register("credit", checked="golden/llada reference:reference.naive_selects.Credit")
class Credit(Logits):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"free": (False, True)}

    alpha: Annotated[float, "weight of the credit in the logits; 0 is off"] = 0.7
    beta: Annotated[float, "share of the credit that remains after a step"] = 0.8
    gamma: Annotated[float, "exponent of the credited probability; below 1 favours low probabilities"] = 0.2
    free: Annotated[bool, "the variant without parameters; alpha, beta and gamma stay at their defaults"] = False

    def __post_init__(self) -> None:
        self.require("beta", least=0, most=1)
        self.require("alpha", "gamma", least=0)
        self.require("alpha", "gamma", most=MAX_SCALE)
        if self.free and (self.alpha, self.beta, self.gamma) != (Credit.alpha, Credit.beta, Credit.gamma):
            raise SpecError("credit: free=true has no alpha, beta or gamma to set", hint="leave them out")

    @property
    def exact(self) -> str:
        return "relaxed" if self.alpha else "greedy"

    def start(self, canvas: Canvas) -> Credits:
        device, width = canvas.tokens.device, canvas.window.shape[1]
        shape = (*canvas.window.shape, _PAIRS if device.type == "cpu" else max(_PAIRS, width))
        values = torch.zeros(shape, dtype=torch.float32, device=device)
        tokens, counts = torch.zeros(shape, dtype=torch.int64, device=device), np.zeros(len(canvas), dtype=int)
        return Credits(tokens, values, counts, counts, counts > 0, counts.astype(np.float32))

    @property
    def provides(self) -> frozenset[Trait]:
        return frozenset({Trait.NEEDS_NO_HOST})

    def prepare(self, canvas: Canvas, state: Credits) -> None:
        if not self.alpha:
            return
        state.entered = canvas.block_started
        state.steps = np.where(state.entered, 1, state.steps + 1)
        state.size = np.where(state.entered, canvas.block_remaining, state.size)
        if self.free:
            state.share = (1 - canvas.block_remaining / np.maximum(state.size, 1)).astype(np.float32)
        _make_room(state)

    def logits(self, evidence: Evidence, canvas: Canvas, state: Credits) -> Distribution:
        if not self.alpha:
            return evidence.distribution
        alpha, decay, gamma = self._weights(canvas, state)
        guess, probability = evidence.distribution.greedy
        # A committed position loses its credit, so that a reopened one starts anew.
        alive = canvas.eligible[..., None] & ~self._put(state.entered, canvas)
        state.values = state.values * torch.where(alive, decay, 0)
        # The pair of this token, else the first free one.
        same = (state.tokens == guess[..., None]) & (state.values > 0)
        pair = (2 * same.int() + (state.values == 0).int()).argmax(-1, keepdim=True)
        gain = (probability**gamma).masked_fill(~evidence.eligible, 0)[..., None]
        state.values = state.values.scatter_add(-1, pair, gain)
        state.tokens = state.tokens.scatter(-1, pair, guess[..., None])
        return evidence.distribution.boosted(state.tokens, state.values.log1p() * alpha)

    def _weights(self, canvas: Canvas, state: Credits) -> tuple[Tensor | float, Tensor | float, float]:
        """Returns alpha, beta and gamma of this step."""
        if not self.free:
            return self.alpha, self.beta, self.gamma
        share = self._put(state.share, canvas)
        return share, share, 1.0

    @staticmethod
    def _put(values: np.ndarray, canvas: Canvas) -> Tensor:
        return upload(values, canvas.tokens.device)[:, None, None]


def _make_room(state: Credits) -> None:
    """Doubles the pairs of every position where the steps of a block might fill them."""
    pairs = state.tokens.shape[-1]
    if state.steps.max(initial=0) > pairs:
        state.tokens, state.values = (torch.nn.functional.pad(x, (0, pairs)) for x in (state.tokens, state.values))
