"""A law: the distribution that some logits stand for, and drawing from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange
from torch import Tensor

from pardec.samplers.kernels.confidence import Confidence, confidence, greedy
from pardec.samplers.rng import gumbel


@dataclass(frozen=True)
class Law:
    """softmax(logits), [..., V]. Statistics are computed once, when first asked for."""

    logits: Tensor

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        """The argmax and its probability, [...]."""
        return greedy(self.logits)

    @cached_property
    def confidence(self) -> Confidence:
        """argmax, top-1, top-2, log-sum-exp and entropy, each [...]."""
        return confidence(self.logits)

    def probability(self, tokens: Tensor) -> Tensor:
        """The probability of `tokens` [...]."""
        ids, highest = self.greedy
        if tokens is ids:
            return highest
        chosen = self.logits.gather(-1, torch.stack((ids, tokens), -1))
        return (chosen[..., 1] - chosen[..., 0]).exp() * highest

    def draw(self, uniform: Tensor) -> Tensor:
        """One token [...] per row of `uniform` [..., V] in (0, 1): the Gumbel-max rule, in float64."""
        return (self.logits.double() + gumbel(uniform)).argmax(-1)


def filtered(logits: Tensor, *, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """`logits` [B, W, V] over the temperature, then without what top-p and then top-k leave out (-inf).

    A temperature of 0 leaves the logits undivided: the argmax is the same and the filters still shape the law.
    """
    if temperature > 0 and temperature != 1:
        logits = logits / temperature
    if top_k is None and top_p is None:
        return logits
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    warpers = [TopPLogitsWarper(top_p)] if top_p is not None and top_p < 1 else []
    warpers += [TopKLogitsWarper(top_k)] if top_k is not None else []
    rows = rearrange(logits, "b w v -> (b w) v")
    for warper in warpers:
        rows = warper(None, rows)
    return rearrange(rows, "(b w) v -> b w v", b=len(logits))
