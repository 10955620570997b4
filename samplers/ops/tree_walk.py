"""Ways down a draft: from node 0 to children that were accepted, every row at its own node."""

from __future__ import annotations

import torch
from torch import Tensor

from ..speculative.contracts import Draft
from .rank import argmax


def descend(draft: Draft, taken: Tensor) -> tuple[Tensor, Tensor]:
    """The path [B, D] from node 0 through `taken` [B, T], at each level the first such child, and its length [B]."""
    index = torch.arange(draft.width, device=taken.device)
    if draft.parents is None:
        return index.expand_as(draft.tokens), taken[:, 1:].long().cumprod(1).sum(1)
    walk = Walk(draft)
    for _ in range(draft.deepest):
        walk.step(taken & walk.children)
    return walk.path, walk.count


def longest(draft: Draft, fits: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Path [B, D] and count [B]: the deepest path of nodes `fits` [B, T]; ties go to the highest sum of `score` [B, T].

    Of equal sums that of the first node stands.
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
        here = count >= level
        path[:, level] = torch.where(here, node, 0)
        node = torch.where(here, parent.gather(1, node[:, None])[:, 0], node)
    return path, count


def reached(draft: Draft, path: Tensor, count: Tensor) -> Tensor:
    """[B, T] bool: the nodes that may be compared, which are the children of what was accepted.

    Of the children of one node those behind the accepted one are compared by rules that draw the target's token only.
    """
    index = torch.arange(path.shape[1], device=path.device)
    if draft.parents is None:
        return draft.tested & (torch.arange(draft.width, device=path.device) <= count[:, None] + 1)
    times = torch.zeros_like(draft.tokens).scatter_add_(1, path, (index <= count[:, None]).long())
    return draft.tested & (times > 0).gather(1, draft.parent.clamp(min=0))


class Walk:
    """The way down a tree, every row at its own node."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.index = torch.arange(draft.width, device=draft.tokens.device)
        self.here = torch.zeros_like(draft.tokens[:, 0])  # [B]
        self.count = torch.zeros_like(self.here)  # [B]
        self.alive = torch.ones_like(self.here, dtype=torch.bool)  # [B] no level was without an accepted node
        self.nodes = [self.here]

    @property
    def path(self) -> Tensor:
        """[B, D]"""
        return torch.stack(self.nodes, 1)

    @property
    def children(self) -> Tensor:
        """[B, T] bool: what may be accepted next."""
        return self.draft.tested & (self.draft.parent == self.here[:, None]) & self.alive[:, None]

    def step(self, taken: Tensor) -> Tensor:
        """Goes to the first node of `taken` [B, T]; where there is none the row stays for good. Returns it, [B]."""
        first = torch.where(taken, self.index, self.draft.width).amin(1)
        self.alive = first < self.draft.width
        self.here = torch.where(self.alive, first, self.here)
        self.count = self.count + self.alive
        self.nodes.append(self.here)
        return first
