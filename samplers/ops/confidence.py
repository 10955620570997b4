"""Confidence: argmax, top-1, top-2 and entropy of each row of logits, in one pass where one exists.

x = (logits + by at tokens) / temperature;    with x1 the highest: mass = sum exp(x - x1)
entropy = ln mass - sum exp(x - x1) (x - x1) / mass
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pardec.models.kernels.cpu import library
from pardec.models.kernels.cpu.library import COUNT, POINTER
from pardec.models.kernels.ops import choose_ops

_FILE = Path(__file__).with_suffix(".c")
_ARGUMENTS = (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT)
_LIKELIEST = (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, COUNT)
_SHARES = (POINTER, POINTER, POINTER, POINTER, COUNT, COUNT)

_APIECE = 1 << 22  # logits whose probabilities are computed at once
CACHED = 1 << 17  # logits whose intermediate results stay in a processor's cache


class Confidence(NamedTuple):
    """Statistics over the last dimension; all of shape [...]."""

    ids: Tensor  # int64, the argmax; the lowest id on ties
    top1: Tensor  # float32, the largest logit
    top2: Tensor  # float32, the second largest (equal to top1 on a tie)
    mass: Tensor  # float32, sum of exp(logit - top1); 1 / mass is the argmax's probability
    entropy: Tensor  # float32, nats

    @property
    def probability(self) -> Tensor:
        """The argmax's probability."""
        return self.mass.reciprocal()


def suits_numpy(values: Tensor) -> bool:
    """Whether numpy may compute a few values: it has less overhead, but no dispatch mode of PyTorch sees it."""
    return values.device.type == "cpu" and torch._C._len_torch_dispatch_stack() == 0


def argmax(values: Tensor) -> Tensor:
    """The index of the highest of `values` [..., N], the lowest on ties; [...] int64.

    On a CPU it is numpy's, which takes a fifth of the time of torch's.
    """
    if values.dtype == torch.bfloat16 or values.requires_grad or not suits_numpy(values):
        return values.argmax(-1)
    return torch.from_numpy(np.asarray(values.numpy().argmax(-1)))


def picks(logits: Tensor) -> tuple[Tensor, Tensor | None]:
    """`argmax` of `logits` [..., V], and its probability [...] where one pass over them computes both; else None."""
    if logits.dtype == torch.float32 and choose_ops(logits.device, logits.dtype).version == "c" and compiled():
        return greedy_c(logits)
    return argmax(logits), None


def confidence(
    logits: Tensor, *, temperature: float = 1.0, tokens: Tensor | None = None, by: Tensor | None = None
) -> Confidence:
    """Statistics of `logits` [..., V], in float32 for any type, after boosts and division by the temperature.

    Args:
        temperature: above 0.
        tokens: [..., K] int64 whose logits are raised first; the amounts of a repeated token add up.
        by: [..., K] float32; -inf rules a token out.

    >>> confidence(torch.tensor([[0.0, 0.0]])).entropy
    tensor([0.6931])
    """
    if choose_ops(logits.device, torch.float32).version == "triton":
        from .confidence_triton import confidence as fast

        return Confidence(*fast(logits, temperature, tokens, by))
    return _define(_processed(logits.float(), temperature, tokens, by))


def _processed(logits: Tensor, temperature: float, tokens: Tensor | None, by: Tensor | None) -> Tensor:
    if tokens is not None and by is not None:
        logits = logits.scatter_add(-1, tokens, by)
    return logits if temperature == 1 else logits / temperature


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax [...] of `logits` [..., V] and its probability."""
    chosen, logits = choose_ops(logits.device, torch.float32).version, logits.float()
    if chosen == "triton":
        row = confidence(logits)
        return row.ids, row.probability
    if chosen == "c" and compiled():
        return greedy_c(logits)
    if logits.numel() <= _APIECE:
        highest = logits.softmax(-1).amax(-1)
        if logits.device.type != "cpu" or logits.requires_grad:
            return logits.argmax(-1), highest
        return torch.from_numpy(np.asarray(logits.numpy().argmax(-1))), highest  # as `argmax` does
    rows = torch.split(logits.reshape(-1, logits.shape[-1]), max(_APIECE // logits.shape[-1], 1))
    ids, probability = zip(*((argmax(part), part.softmax(-1).amax(-1)) for part in rows), strict=True)
    return torch.cat(ids).view(logits.shape[:-1]), torch.cat(probability).view(logits.shape[:-1])


def probability_of(logits: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """[N]: the probability of each of `ids` [N] in row `rows` [N] (flat index) of `logits` [..., V]."""
    if logits.dtype == torch.float32 and choose_ops(logits.device, logits.dtype).version == "c" and compiled():
        return probability_c(logits, rows, ids)
    chosen = logits.flatten(0, -2).index_select(0, rows)
    return chosen.softmax(-1).gather(-1, ids.unsqueeze(1)).squeeze(1)


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities [..., count] of the likeliest tokens of `logits` [..., V], descending, and their ids."""
    count = min(count, logits.shape[-1])
    if logits.dtype == torch.float32 and choose_ops(logits.device, logits.dtype).version == "c" and compiled():
        return likeliest_c(logits, count)
    top, columns = logits.log_softmax(-1).topk(count)
    return top, columns


def _define(logits: Tensor) -> Confidence:
    rows = logits.detach().reshape(-1, logits.shape[-1])
    count = max(CACHED // rows.shape[1], 1)
    if len(rows) <= count or logits.device.type != "cpu":
        result = _of_rows(rows, torch.empty_like(rows), torch.empty_like(rows))
    else:  # a few rows at a time, in the same memory: fresh pages would cost more than the arithmetic
        buffers = rows.new_empty((2, count, rows.shape[1]))
        parts = [_of_rows(part, *buffers[:, : len(part)]) for part in torch.split(rows, count)]
        result = Confidence(*map(torch.cat, zip(*parts, strict=True)))
    return Confidence(*(each.view(logits.shape[:-1]) for each in result))


def _of_rows(logits: Tensor, shifted: Tensor, weights: Tensor) -> Confidence:
    """The statistics of logits [N, V]; overwrites `shifted` and `weights`, which have the same shape."""
    ids = argmax(logits)[:, None]
    top1 = logits.gather(-1, ids)
    torch.sub(logits, top1, out=shifted)
    mass = torch.exp(shifted, out=weights).sum(-1)
    # A logit of -inf has weight 0 and adds nothing, but -inf * 0 is NaN.
    mean = weights.mul_(shifted.clamp_(min=torch.finfo(torch.float32).min)).sum(-1) / mass
    top2 = shifted.copy_(logits).scatter_(-1, ids, -torch.inf).amax(-1)
    return Confidence(ids[:, 0], top1[:, 0], top2, mass, mass.log() - mean)


def compiled() -> bool:
    """Whether the kernels exist: their file may fail to compile although others do."""
    return library.kernel(_FILE, "pardec_greedy", _ARGUMENTS) is not None


def greedy_c(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax [...] of float32 `logits` [..., V] on a CPU, the lowest id on ties, and its probability."""
    logits = logits.contiguous()
    ids, probability = torch.empty(logits.shape[:-1], dtype=torch.int64), torch.empty(logits.shape[:-1])
    run = library.kernel(_FILE, "pardec_greedy", _ARGUMENTS)
    sizes = ids.numel(), logits.shape[-1], torch.get_num_threads()
    run(logits.data_ptr(), ids.data_ptr(), probability.data_ptr(), *sizes)
    return ids, probability


def likeliest_c(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities [..., count] of the highest float32 `logits` [..., V] on a CPU, and their indices."""
    logits = logits.contiguous()
    width = logits.shape[-1]
    shares = torch.empty(*logits.shape[:-1], count)
    ids = torch.empty(shares.shape, dtype=torch.int64)
    run = library.kernel(_FILE, "pardec_likeliest", _LIKELIEST)
    threads = torch.get_num_threads()
    run(logits.data_ptr(), ids.data_ptr(), shares.data_ptr(), logits.numel() // width, width, count, threads)
    return shares, ids


def probability_c(logits: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """[N]: the probability of each of `ids` [N] in row `rows` [N] of float32 `logits` [..., V] on a CPU."""
    logits, rows, ids = logits.contiguous(), rows.contiguous(), ids.contiguous()
    shares = torch.empty(len(ids))
    run = library.kernel(_FILE, "pardec_shares", _SHARES)
    run(logits.data_ptr(), rows.data_ptr(), ids.data_ptr(), shares.data_ptr(), len(ids), logits.shape[-1])
    return shares


_REACH = 12  # standard deviations after which a Gaussian adds nothing in float32


def certainty_density(known: Tensor, total: Tensor, sigma: float) -> Tensor:
    """The share of tokens around each position that are known, weighted by a Gaussian of `sigma` positions.

    Everything before a row counts as known, and everything after it is what its last position is.

    Args:
        known: [B, L] bool.
        total: [B] int64, the length of each row.

    Returns:
        [B, L] float32, without meaning past a row's end.

    >>> certainty_density(torch.tensor([[True, False, False]]), torch.tensor([3]), 1.0)
    tensor([[0.6995, 0.3005, 0.0586]])
    """
    length = known.shape[1]
    at = torch.arange(length, device=known.device)
    last = known.gather(1, (total - 1).clamp(min=0)[:, None])
    values = torch.where(at < total[:, None], known, last).float()
    near = values @ _gaussian(at[:, None] - at, sigma).float()
    reach = torch.arange(length + 1 + math.ceil(_REACH * sigma), device=known.device)
    tails = _gaussian(reach, sigma).flip(0).cumsum(0).flip(0)  # sum from each distance on
    outside = tails[at + 1] + last * tails[length - at]
    return (near + outside.float()) / (2 * tails[0] - 1).float()


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    return (-(distance.double() ** 2) / (2 * sigma**2)).exp()
