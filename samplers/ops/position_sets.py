"""Functions of sets of positions: columns, nucleus by share of a sum, gaps between positions, independent sets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .rank import descending


def columns_of(which: np.ndarray, blank: int) -> np.ndarray:
    """The positions of each row of `which` [B, L] bool in order -> [B, K] int64, padded with `blank`.

    >>> columns_of(np.array([[False, True, True], [True, False, False]]), 3)
    array([[1, 2],
           [0, 3]])
    """
    count = which.sum(1)
    most = int(count.max())
    columns: np.ndarray = np.argsort(~which, axis=1, kind="stable")[:, :most]
    return np.where(np.arange(most) < count[:, None], columns, blank)


def first_columns(which: Tensor, most: int, blank: int) -> Tensor:
    """[B, K], K at most `most`: `columns_of` on a device, where the host does not know how many there are.

    A CPU's values are read, so that K is the greatest number in a row.
    """
    count = which.sum(1, keepdim=True)
    most = int(count.max()) if which.device.type == "cpu" else min(most, which.shape[1])
    columns = (~which).byte().argsort(dim=1, stable=True)[:, :most]
    return torch.where(torch.arange(most, device=which.device) < count, columns, blank)


def nucleus(values: np.ndarray, share: float) -> np.ndarray:
    """[B, L] bool: the highest of `values` [B, L] that sum to at most `share` of the total, and at least one.

    None where all are 0.
    """
    order = (-values).argsort(1, kind="stable")
    ordered = np.take_along_axis(values, order, 1)
    sums = ordered.cumsum(1)
    sums /= np.maximum(sums[:, -1:], np.float32(1e-9))  # their own total, so that the last is exactly 1
    within = (sums <= share) & (ordered > 0)
    within[:, 0] = ordered[:, 0] > 0
    chosen: np.ndarray = np.zeros_like(within)
    np.put_along_axis(chosen, order, within, 1)
    return chosen


def between(positions: np.ndarray, distance: int) -> np.ndarray:
    """[B, L] bool: the positions between two of `positions` [B, L] bool that are at most `distance` apart."""
    at, length = np.arange(positions.shape[1]), positions.shape[1]
    left = np.maximum.accumulate(np.where(positions, at, -1 - distance), axis=1)
    right = np.minimum.accumulate(np.where(positions, at, length + distance)[:, ::-1], axis=1)[:, ::-1]
    near: np.ndarray = right - left <= distance
    return near


def independent_set(score: Tensor, nodes: Tensor, conflict: Tensor) -> Tensor:
    """The subset of `nodes` [B, W] bool that a greedy pass by descending `score` [B, W] takes without conflicts.

    `conflict` [B, W, W] bool is symmetric, without its diagonal. Equal scores go to the lowest position. Rounds take at
    once whatever leads all of its conflicts, which is what the pass takes one by one.

    >>> score, nodes = torch.tensor([[0.9, 0.8, 0.7]]), torch.ones(1, 3, dtype=torch.bool)
    >>> chain = torch.tensor([[[0, 1, 0], [1, 0, 1], [0, 1, 0]]]).bool()
    >>> independent_set(score, nodes, chain).tolist()
    [[True, False, True]]
    """
    rank = descending(score.masked_fill(~nodes, -torch.inf))[1]
    ahead = conflict & (rank[:, None, :] < rank[:, :, None])  # [B, W, W]: higher-scored nodes in conflict with each
    left, taken = nodes, torch.zeros_like(nodes)
    for _ in range(left.shape[1]):  # each round takes at least one
        if left.device.type == "cpu" and not left.any():  # on a GPU, reading this would synchronize
            break
        leads = left & ~(ahead & left[:, None, :]).any(2)
        taken = taken | leads
        left = left & ~leads & ~(conflict & leads[:, None, :]).any(2)
    return taken
