"""How many slots each layer keeps, and which: the formulas of `cake`."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor


def preference(attention: Tensor, tau1: float, tau2: float) -> Tensor:
    """[B] float64 of one layer: disp^(1/tau1) var^(1/tau2) of attention [B, H, n, S] over the older slots.

    disp = -sum A log A over heads, queries and slots; var = the sum over heads and slots of the queries' variance.
    """
    a = attention.double()
    disp = -torch.xlogy(a, a).sum((1, 2, 3))
    return disp ** (1 / tau1) * a.var(2).sum((1, 2)) ** (1 / tau2)


def layer_budgets(preferences: np.ndarray, average: int, most: int) -> np.ndarray:
    """[L] int64: `average` L slots in proportion to `preferences` [L], at most `most` a layer; the excess goes round.

    >>> layer_budgets(np.array([8.0, 1.0, 1.0]), 10, 20).tolist()
    [20, 5, 5]
    """
    count, total = len(preferences), min(average, most) * len(preferences)
    whole = preferences.sum()
    shares = preferences / whole if np.isfinite(whole) and whole > 0 else np.full(count, 1 / count)
    budgets = np.minimum((shares * total).astype(np.int64), most)
    while (left := total - int(budgets.sum())) > 0:
        room = np.flatnonzero(budgets < most)
        budgets[room] += left // len(room)
        budgets[room[: left % len(room)]] += 1
        budgets = np.minimum(budgets, most)
    return budgets


def indicator(attention: Tensor, heads: int, gamma: float) -> Tensor:
    """[B, S, K]: mean + gamma var over the queries of attention [B, H, n, S], pooled over 5 slots, meaned over a group.

    Of a single query the variance counts for nothing.
    """
    score = attention.mean(2)
    if attention.shape[2] > 1:
        score = score + gamma * attention.var(2)
    pooled = F.avg_pool1d(score, 5, stride=1, padding=2)
    return rearrange(pooled, "b (k g) s -> b s k g", k=heads).mean(-1)


def best(slots: Tensor, score: Tensor, budget: Tensor) -> Tensor:
    """[B, N, K]: of the candidates `slots` [B, S, K] (-1: none) the `budget` [B] of the highest score, in order.

    N is the largest budget; -1 fills a row that has a smaller one.
    """
    score = score.masked_fill(slots < 0, -torch.inf)
    rank = score.argsort(dim=1, descending=True, stable=True).argsort(1)
    survivors = (rank < budget[:, None, None]) & (slots >= 0)
    none = torch.iinfo(slots.dtype).max
    ordered = torch.where(survivors, slots, none).sort(1).values[:, : int(budget.max())]
    return torch.where(ordered == none, -1, ordered)
