"""Shared by the shapes: a tree that grows level by level, and the stopping by a length controller."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..contracts import DecodeContext, Draft, DraftModel
from ..sequences import Sequences


class Tree:
    """The nodes grown so far, with a value each; node 0 is the row's last committed token.

    Every level is added behind the ones above, siblings in order, so any choice of nodes that includes their parents
    is in topological order.
    """

    def __init__(self, text: Sequences) -> None:
        self.text = text
        self.tokens = text.last[:, None]  # [B, M]
        self.parents = torch.full_like(self.tokens, -1)
        self.depths = torch.zeros_like(self.tokens)
        self.values = torch.ones_like(self.tokens, dtype=torch.float64)  # nodes are chosen by value; 0 is no node
        self.levels = 0

    def draft(self) -> Draft:
        """All nodes, for the drafting model."""
        base = self.text.length - 1
        if self.tokens.shape[1] == 1:
            return Draft.none(self.text)
        sizes = np.full_like(base, self.tokens.shape[1])
        return Draft(self.tokens, sizes, base, self.parents, self.depths, self.levels)

    def add(self, tokens: Tensor, values: Tensor, frontier: Tensor) -> None:
        """The next level: children [B, K, W] of the nodes `frontier` [B, K]."""
        self.levels += 1
        batch, count = len(tokens), tokens.shape[1] * tokens.shape[2]
        parents = frontier.clamp(min=0)[..., None].expand_as(tokens)
        self.tokens = torch.cat((self.tokens, tokens.reshape(batch, count)), 1)
        self.parents = torch.cat((self.parents, parents.reshape(batch, count)), 1)
        self.depths = torch.cat((self.depths, torch.full_like(self.depths[:, :1], self.levels).expand(-1, count)), 1)
        self.values = torch.cat((self.values, values.reshape(batch, count).double()), 1)

    def best(self, count: int) -> Tensor:
        """[B, M] bool: node 0 and the `count` others of the highest values above 0; of equals the first."""
        order = self.values[:, 1:].sort(dim=1, descending=True, stable=True).indices[:, :count]
        chosen = torch.zeros_like(self.values, dtype=torch.bool).scatter_(1, order + 1, True) & (self.values > 0)
        chosen[:, 0] = True
        return chosen

    def cut(self, chosen: Tensor, draft_model: DraftModel) -> tuple[Draft, Tensor]:
        """The draft of the `chosen` nodes [B, M] bool, and their indices in the tree, [B, T]."""
        sizes = chosen.sum(1).cpu().numpy()
        nodes = packed(chosen, int(sizes.max())).clamp(min=0)
        draft_model.prune(nodes)
        new_index = chosen.long().cumsum(1) - 1
        parents = self.parents.gather(1, nodes)
        parents = torch.where(parents < 0, -1, new_index.gather(1, parents.clamp(min=0)))
        padding = torch.arange(nodes.shape[1], device=nodes.device) >= chosen.sum(1, keepdim=True)
        tokens, depths = self.tokens.gather(1, nodes), self.depths.gather(1, nodes)
        base = self.text.length - 1
        return Draft(tokens, sizes, base, parents.masked_fill(padding, 0), depths, self.levels), nodes


def packed(chosen: Tensor, width: int) -> Tensor:
    """[B, width] int64: the indices that are `chosen` [B, M], in order, then -1."""
    order = (~chosen).long().sort(dim=1, stable=True).indices[:, :width]
    return torch.where(chosen.gather(1, order), order, -1)


def stopped_rows(
    context: DecodeContext, draft_model: DraftModel, logits: Tensor, nodes: Tensor, step: int
) -> np.ndarray | None:
    """[B] bool: the rows that stop after level `step`, from 0, which is about to be drafted; None if none stops.

    Args:
        logits: [B, K, V] processed, behind `nodes` [B, K], of the last forward of `draft_model`.
    """
    length = context.sampler.length
    if length is None:
        return None
    estimate = draft_model.acceptance()
    sure = (logits.softmax(-1).amax(-1) if estimate is None else estimate).masked_fill(nodes < 0, 0).amax(1)
    stop = length.stop(sure, step, context, context.state(length))
    return None if stop is None else stop.cpu().numpy()


def drops_last(context: DecodeContext) -> bool:
    """Whether the token at which the controller stops is not drafted."""
    return context.sampler.length is not None and context.sampler.length.drops_last
