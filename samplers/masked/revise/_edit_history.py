"""What a block has been while it was edited, and how many steps it has had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...ops.distribution import Distribution
from ...ops.rank import argmax, best
from ..contracts import Canvas


@dataclass
class EditHistory:
    """The active block of each row so far; S steps at most."""

    own: Tensor  # [B, W] bool: masks of the block itself, or what was written there; not those that edits inserted
    size: Tensor  # [B] how many these were
    steps: Tensor  # [B]
    after: Tensor  # [B] of these, steps that began with none of the block's own masks
    blocks: Tensor  # [B, S, W] int64: the tokens at the start of each step; -1 of no step
    writes: Tensor  # [B, S, W] int64: what it wrote, -1 where nothing

    @classmethod
    def empty(cls, canvas: Canvas, most: int) -> EditHistory:
        """Before the first step; a block has `most` at most."""
        none = torch.zeros_like(canvas.window, dtype=torch.bool)
        count = torch.zeros(len(canvas), dtype=torch.int64, device=none.device)
        steps = torch.full((len(canvas), most, none.shape[1]), -1, device=none.device)
        return cls(none, count, count, count, steps, steps)

    def enter(self, canvas: Canvas, masks: Tensor) -> None:
        """Rows that have come to a new block begin anew; `masks` [B, W] are open."""
        new = torch.from_numpy(canvas.entered).to(masks.device)
        self.own = torch.where(new[:, None], masks, self.own)
        self.size = torch.where(new, masks.sum(1), self.size)
        self.steps, self.after = (torch.where(new, 0, count) for count in (self.steps, self.after))
        self.blocks, self.writes = (torch.where(new[:, None, None], -1, each) for each in (self.blocks, self.writes))

    def count(self, filled: Tensor, post: int) -> Tensor:
        """Counts a step, of a block whose own masks are gone where `filled` [B]; whether it is the last, [B] bool."""
        self.steps, self.after = self.steps + 1, self.after + filled
        return (self.after >= post) | (self.steps > self.size + post)

    def untried(self, tokens: Tensor, writes: Tensor, sure: Tensor, ids: Tensor, distribution: Distribution) -> Tensor:
        """`ids` [B, W] with another token at the least `sure` change of rows whose `tokens` [B, W] were met before."""
        met = (self.blocks == tokens[:, None]).all(-1).any(1, keepdim=True)
        changes = writes & (ids != tokens) & met
        which = changes & best(torch.where(changes, -sure, -torch.inf))
        row, column = which.cpu().numpy().nonzero()
        if not len(row):
            return ids
        at = torch.from_numpy(row).to(ids.device), torch.from_numpy(column).to(ids.device)
        earlier = self.writes.transpose(1, 2)[at]  # [n, S]
        return _other(ids, at, earlier, distribution)

    def record(self, tokens: Tensor, writes: Tensor, ids: Tensor) -> None:
        """The step's block and what it writes, [B, W] each."""
        at = (self.steps - 1)[:, None, None].expand(-1, 1, tokens.shape[1])
        self.blocks = self.blocks.scatter(1, at, tokens[:, None])
        self.writes = self.writes.scatter(1, at, torch.where(writes, ids, -1)[:, None])

    def move(self, source: Tensor) -> None:
        """What is known of each position goes where its token goes."""
        self.own = self.own.gather(1, source.clamp(min=0)) & (source >= 0)


def without(forbidden: Sequence[int], which: Tensor, ids: Tensor, distribution: Distribution) -> Tensor:
    """`ids` [B, W] with the best token that is not `forbidden` in the place of those at `which` [B, W]."""
    row, column = which.cpu().numpy().nonzero()
    if not len(row):
        return ids
    at = torch.from_numpy(row).to(ids.device), torch.from_numpy(column).to(ids.device)
    return _other(ids, at, ids.new_tensor(forbidden).expand(len(row), -1), distribution)


def _other(ids: Tensor, at: tuple[Tensor, Tensor], barred: Tensor, distribution: Distribution) -> Tensor:
    """`ids` [B, W] with the best tokens `at` n places that are none of `barred` [n, K], -1 being none."""
    flat = (at[0] * ids.shape[1] + at[1]).cpu().numpy()
    logits = distribution.logits_at(np.asarray(flat))
    never = torch.zeros(len(flat), logits.shape[1] + 1, dtype=torch.bool, device=ids.device)
    never.scatter_(1, torch.where(barred < 0, logits.shape[1], barred), True)
    logits = logits.masked_fill(never[:, :-1], -torch.inf)
    tokens = torch.where(logits.amax(1) > -torch.inf, argmax(logits), ids[at])
    return ids.index_put(at, tokens)
