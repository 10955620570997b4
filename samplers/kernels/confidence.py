"""Confidence: argmax, top-1, top-2, log-sum-exp and entropy of each row of logits, in one pass where one exists."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pardec.models.kernels.choice import backend
from pardec.samplers.kernels.rank import argmax


class Confidence(NamedTuple):
    """Statistics over the last dimension; all of shape [...]."""

    ids: Tensor  # int64, the argmax; the lowest id on ties
    top1: Tensor  # float32, the largest logit
    top2: Tensor  # float32, the second largest (equal to top1 on a tie)
    mass: Tensor  # float32, sum of exp(logit - top1); 1 / mass is the argmax's probability
    entropy: Tensor  # float32, nats

    @property
    def lse(self) -> Tensor:
        """log-sum-exp of the logits."""
        return self.top1 + self.mass.log()

    @property
    def probability(self) -> Tensor:
        """The argmax's probability."""
        return self.mass.reciprocal()

    def probability_of(self, logit: Tensor) -> Tensor:
        """The probability of a token with this logit."""
        return (logit - self.top1).exp() / self.mass


def confidence(logits: Tensor) -> Confidence:
    """Statistics of `logits` [..., V], in float32 whatever their type.

    >>> confidence(torch.tensor([[0.0, 0.0]])).entropy
    tensor([0.6931])
    """
    if backend(logits.device) == "triton":
        from pardec.samplers.kernels.confidence_triton import confidence as fast

        return Confidence(*fast(logits))
    return _define(logits.float())


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax [...] of `logits` [..., V] and its probability; what most proposers need, and no more."""
    if backend(logits.device) == "triton":
        found = confidence(logits)
        return found.ids, found.probability
    logits = logits.float()
    return argmax(logits), logits.softmax(-1).amax(-1)


def _define(logits: Tensor) -> Confidence:
    ids = argmax(logits)
    top1 = logits.gather(-1, ids[..., None])[..., 0]
    shifted = logits - top1[..., None]
    weights = shifted.exp()
    mass = weights.sum(-1)
    # A logit of -inf has weight 0 and adds nothing, but -inf * 0 is NaN.
    mean = (weights * shifted.clamp(min=torch.finfo(torch.float32).min)).sum(-1) / mass
    top2 = logits.scatter(-1, ids[..., None], -torch.inf).max(-1).values
    return Confidence(ids, top1, top2, mass, mass.log() - mean)
