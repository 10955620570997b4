"""Paths through a draft, from node 0 to accepted children, every row at its own node."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...ops.confidence import argmax
from ..contracts import Draft


def descend(draft: Draft, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """The path [B, D] from node 0 through `accepted` [B, T], at each level the first such child, and its length [B].

    On a CPU, those of trees are found with numpy: PyTorch begins no operation in the time that all of them take there.
    """
    if draft.parents is None:
        index = torch.arange(draft.width, device=accepted.device)
        return index.expand_as(draft.tokens), accepted[:, 1:].long().cumprod(1).sum(1)
    if accepted.device.type != "cpu":
        walk = Walk(draft)
        for _ in range(draft.deepest):
            walk.step(accepted & walk.children)
        return walk.path, walk.count
    fits, parent = (accepted & draft.tested).numpy(), draft.parent.numpy()
    rows, node, alive = np.arange(len(fits)), np.zeros(len(fits), dtype=np.int64), np.ones(len(fits), dtype=bool)
    path, count = [node], np.zeros_like(node)
    for _ in range(draft.deepest):
        below = fits & (parent == node[:, None])
        first = below.argmax(1)
        alive = alive & below[rows, first]
        node = np.where(alive, first, node)
        count = count + alive
        path.append(node)
    return torch.from_numpy(np.stack(path, 1)), torch.from_numpy(count)


def longest(draft: Draft, fits: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Path [B, D] and count [B]: the deepest path of nodes `fits` [B, T]; ties go to the highest sum of `score` [B, T].

    Of equal sums the first node's path is taken.
    """
    if draft.parents is None:
        return descend(draft, fits)
    parent, depth = draft.parent.clamp(min=0), draft.depth
    root = torch.arange(draft.width, device=depth.device) == 0
    linked, along = root.expand_as(fits), torch.where(root, 0, score)
    for _ in range(draft.deepest):
        linked = root | (fits & linked.gather(1, parent))
        along = torch.where(root, 0, score + along.gather(1, parent))
    count = torch.where(linked, depth, 0).amax(1)
    last = linked & (depth == count[:, None])
    node = argmax(along.masked_fill(~last, -torch.inf))
    path = torch.zeros_like(draft.tokens[:, : draft.deepest + 1])
    for level in range(path.shape[1] - 1, 0, -1):
        inside = count >= level
        path[:, level] = torch.where(inside, node, 0)
        node = torch.where(inside, parent.gather(1, node[:, None])[:, 0], node)
    return path, count


def reached(draft: Draft, path: Tensor, count: Tensor) -> Tensor:
    """[B, T] bool: the children of accepted nodes, whose tokens may have been compared.

    Exact tests stop at the first accepted sibling; rules that compare with one sampled token look at all siblings.
    """
    index = torch.arange(path.shape[1], device=path.device)
    if draft.parents is None:
        return draft.tested & (torch.arange(draft.width, device=path.device) <= count[:, None] + 1)
    times = torch.zeros_like(draft.tokens).scatter_add_(1, path, (index <= count[:, None]).long())
    return draft.tested & (times > 0).gather(1, draft.parent.clamp(min=0))


class Walk:
    """A walk down a tree, every row at its own node."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.index = torch.arange(draft.width, device=draft.tokens.device)
        self.node = torch.zeros_like(draft.tokens[:, 0])  # [B]
        self.count = torch.zeros_like(self.node)  # [B]
        self.alive = torch.ones_like(self.node, dtype=torch.bool)  # [B] every level so far had an accepted node
        self.nodes = [self.node]

    @property
    def path(self) -> Tensor:
        """[B, D]: each row's nodes so far, from node 0 on."""
        return torch.stack(self.nodes, 1)

    @property
    def children(self) -> Tensor:
        """[B, T] bool: the nodes that may be accepted next."""
        return self.draft.tested & (self.draft.parent == self.node[:, None]) & self.alive[:, None]

    def step(self, accepted: Tensor) -> Tensor:
        """Moves each row to its first node in `accepted` [B, T] and returns it, [B]; a row without one (T) stops."""
        first = torch.where(accepted, self.index, self.draft.width).amin(1)
        self.alive = first < self.draft.width
        self.node = torch.where(self.alive, first, self.node)
        self.count = self.count + self.alive
        self.nodes.append(self.node)
        return first
