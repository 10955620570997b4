"""Commits positions with little attention to each other, at any confidence, then all confident ones.

DAPD: Dependency-Aware Parallel Decoding via Attention for Diffusion LLMs, https://arxiv.org/abs/2603.12996

    s_ij = (a_ij + a_ji) / 2 between open positions of the block, a the mean over heads of the last `share` of layers
    while at least `switch` of the block is open:
        commit = a set without s_ij > tau_t, taken greedily in the order of  p_i sum_j s_ij,  the highest first
    after that:  commit = {i : p_i > tau}
    tau_t = first + (last - first) (1 - r),  r the part of the block's masks that is still open

As published, with the canvas as one block.

Deviates from the authors' code: unknown, since none was found; the rule follows the paper. Open there and
decided here: tau_t with its `first` and `last` is that of an evaluation by others, which also counts the
masks of a block, and the number of layers is rounded up.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.caches.shares import ceil_of_share

from ...host_transfer import upload
from ...ops.position_sets import independent_set
from ...registry import register
from ..contracts import AttentionSpec, Canvas, Proposal, Select


@dataclass
class State:
    """The state of each row's active block."""

    masks: np.ndarray  # [B] open positions when the block was entered


@register("dapd", checked="reference:reference.naive_dependence.Dapd")
class Dapd(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"switch": (0.5, 0.75, 1.0), "tau": (0.9, 0.8, 0.95)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"first": (0.001, 0.003, 0.01, 0.02, 0.05)}

    first: Annotated[float, "attention above which two positions depend on each other, in an open block"] = 0.01
    last: Annotated[float, "the same threshold in a block that is nearly complete"] = 0.05
    switch: Annotated[float, "open share of the block below which only confident positions are committed"] = 0.5
    tau: Annotated[float, "probability above which a position is confident"] = 0.9
    share: Annotated[float, "share of the layers, from the last one, whose attention is read"] = 0.3

    def __post_init__(self) -> None:
        self.require("first", "last", "switch", "tau", "share", least=0, most=1)

    def reads_attention(self, layers: int) -> AttentionSpec:
        count = max(1, int(ceil_of_share(self.share, layers)))
        return AttentionSpec(tuple(range(layers - count, layers)))

    def start(self, canvas: Canvas) -> State:
        return State(np.ones(len(canvas), dtype=np.int64))

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        state.masks = np.where(canvas.block_started, np.maximum(canvas.block_remaining, 1), state.masks)
        part = upload((canvas.block_remaining / state.masks).astype(np.float32), proposal.score.device)[:, None]
        maps, eligible, block = proposal.evidence.attention, proposal.eligible, proposal.evidence.positions
        assert maps is not None, "it is read"
        attention = maps.among(block, maps.mean(self.reads_attention(maps.count)))  # [B, W, W]
        mutual = (attention + attention.transpose(1, 2)) / 2
        itself = torch.eye(block.shape[1], dtype=torch.bool, device=block.device)
        mutual = mutual.masked_fill(itself | ~eligible[:, None] | ~eligible[..., None], 0)
        least = self.first + (self.last - self.first) * (1 - part)
        order = mutual.sum(2) * proposal.score
        apart = independent_set(order, eligible, mutual > least[..., None])
        return torch.where(part < self.switch, proposal.score > self.tau, apart)
