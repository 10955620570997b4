"""Confidence: argmax, top-1, top-2, log-sum-exp and entropy of each row of logits, in one pass where one exists.

    x = (logits + by at tokens) / temperature;    with x1 the highest: mass = sum exp(x - x1)
    entropy = ln mass - sum exp(x - x1) (x - x1) / mass

`confidence` reads logits that are there. `confidence_of` takes the states and the head's weight and goes over the
vocabulary part by part, so that logits never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pardec.models.kernels.choice import backend
from pardec.models.kernels.cpu.layer import usable

from .confidence_c import greedy_c
from .rank import argmax

_APIECE = 1 << 22  # logits whose probabilities are made at once
CACHED = 1 << 17  # logits whose intermediate results stay in a processor's cache


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


def confidence(
    logits: Tensor, *, temperature: float = 1.0, tokens: Tensor | None = None, by: Tensor | None = None
) -> Confidence:
    """Statistics of `logits` [..., V], in float32 whatever their type, raised and over the temperature if told so.

    Args:
        temperature: above 0.
        tokens: [..., K] int64 whose logits are raised first; what one token gets adds up.
        by: [..., K] float32; -inf rules a token out.

    >>> confidence(torch.tensor([[0.0, 0.0]])).entropy
    tensor([0.6931])
    """
    if backend(logits.device) == "triton":
        from .confidence_triton import confidence as fast

        return Confidence(*fast(logits, temperature, tokens, by))
    return _define(_changed(logits.float(), temperature, tokens, by))


def confidence_of(
    states: Tensor,
    weight: Tensor,
    *,
    temperature: float = 1.0,
    tokens: Tensor | None = None,
    by: Tensor | None = None,
    width: int = 8192,
) -> Confidence:
    """`confidence` of the logits states @ weight.T, of which `width` a row are there at a time, or none in Triton.

    Triton's version runs where it is forced to: the head's product is the larger part of the work, and nothing has
    shown yet that it makes that as fast as the library does. Products are rounded to the states' type, as a head's are.

    Args:
        states: [..., E] what goes into the head's product, the final norm included.
        weight: [V, E] of the head, of the same type.
        temperature: above 0; `tokens` and `by` as of `confidence`.

    >>> confidence_of(torch.ones(1, 2), torch.tensor([[1.0, 0.0], [2.0, 3.0]])).top1
    tensor([5.])
    """
    shape, rows = states.shape[:-1], states.flatten(0, -2)
    flat = [None if each is None else each.flatten(0, -2) for each in (tokens, by)]
    if backend(states.device, suited=False) == "triton":
        from .head_triton import confidence_of as fast

        found = merged(fast(rows, weight, temperature, *flat))
    else:
        parts = [
            _part(rows, weight[start : start + width], temperature, flat, start)
            for start in range(0, len(weight), width)
        ]
        found = merged(tuple(torch.stack(each) for each in zip(*parts, strict=True)))
    return Confidence(*(each.view(shape) for each in found))


Sums = tuple[Tensor, ...]  # ids, top-1, top-2, mass and moment, the sum of exp(x - top1) (x - top1)


def merged(parts: Sums) -> Confidence:
    """The statistics of whole rows [N] from those of parts of the vocabulary, each [P, N]; a part may be all -inf."""
    ids, first, second, mass, moment = parts
    top1 = first.amax(0)
    best = ids.masked_fill(first < top1, torch.iinfo(ids.dtype).max).amin(0)
    drop = torch.where(first == -torch.inf, first, first - top1)
    kept = drop.exp()
    drop = torch.where(kept > 0, drop, 0)
    total = (kept * mass).sum(0)
    moment = (kept * (moment + mass * drop)).sum(0)
    pair = torch.cat((first, second)).topk(2, dim=0).values
    return Confidence(best, top1, pair[1], total, total.log() - moment / total)


def _part(rows: Tensor, weight: Tensor, temperature: float, boosted: Sequence[Tensor | None], start: int) -> Sums:
    """The sums over one part of the vocabulary, of rows [N, E] and weight [w, E]."""
    tokens, by = boosted
    if tokens is not None and by is not None:
        inside = (tokens >= start) & (tokens < start + len(weight))
        tokens, by = torch.where(inside, tokens - start, 0), torch.where(inside, by, 0)
    found = _define(_changed((rows @ weight.T).float(), temperature, tokens, by))
    none = found.top1 == -torch.inf
    mass = found.mass.masked_fill(none, 0)
    moment = (found.mass * (found.mass.log() - found.entropy)).masked_fill(none, 0)
    return found.ids + start, found.top1, found.top2, mass, moment


def _changed(logits: Tensor, temperature: float, tokens: Tensor | None, by: Tensor | None) -> Tensor:
    if tokens is not None and by is not None:
        logits = logits.scatter_add(-1, tokens, by)
    return logits if temperature == 1 else logits / temperature


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax [...] of `logits` [..., V] and its probability; what most proposers need, and no more."""
    if backend(logits.device) == "triton":
        found = confidence(logits)
        return found.ids, found.probability
    logits = logits.float()
    if usable(logits.device, logits.dtype):
        return greedy_c(logits)
    if logits.numel() <= _APIECE:
        return argmax(logits), logits.softmax(-1).amax(-1)
    rows = torch.split(logits.reshape(-1, logits.shape[-1]), max(_APIECE // logits.shape[-1], 1))
    ids, probability = zip(*((argmax(part), part.softmax(-1).amax(-1)) for part in rows), strict=True)
    return torch.cat(ids).view(logits.shape[:-1]), torch.cat(probability).view(logits.shape[:-1])


def _define(logits: Tensor) -> Confidence:
    rows = logits.detach().reshape(-1, logits.shape[-1])
    count = max(CACHED // rows.shape[1], 1)
    if len(rows) <= count or logits.device.type != "cpu":
        found = _of_rows(rows, torch.empty_like(rows), torch.empty_like(rows))
    else:  # a few rows at a time, in the same memory: fresh pages would cost more than the arithmetic
        held = rows.new_empty((2, count, rows.shape[1]))
        parts = [_of_rows(part, *held[:, : len(part)]) for part in torch.split(rows, count)]
        found = Confidence(*map(torch.cat, zip(*parts, strict=True)))
    return Confidence(*(each.view(logits.shape[:-1]) for each in found))


def _of_rows(logits: Tensor, shifted: Tensor, weights: Tensor) -> Confidence:
    """Of logits [N, V]; what is handed in beside them, of their shape, is overwritten."""
    ids = argmax(logits)[:, None]
    top1 = logits.gather(-1, ids)
    torch.sub(logits, top1, out=shifted)
    mass = torch.exp(shifted, out=weights).sum(-1)
    # A logit of -inf has weight 0 and adds nothing, but -inf * 0 is NaN.
    mean = weights.mul_(shifted.clamp_(min=torch.finfo(torch.float32).min)).sum(-1) / mass
    top2 = shifted.copy_(logits).scatter_(-1, ids, -torch.inf).amax(-1)
    return Confidence(ids[:, 0], top1[:, 0], top2, mass, mass.log() - mean)
