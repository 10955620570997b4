"""Drafts: the tokens that one forward verifies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from .early_states import EarlyStates
    from .queries import Queries
    from .sequences import Sequences


@dataclass(frozen=True, eq=False)
class Draft:
    """Tokens to verify in one forward: a tree in topological order whose node 0 is the row's last committed token.

    Siblings are in the order in which they were sampled, and differ unless that was with replacement. `q[b, i]` is the
    distribution that node i was sampled from given its earlier siblings, processed as the target's are.
    """

    tokens: Tensor  # [B, T] int64; -1 is no token: see `ids`
    sizes: np.ndarray  # [B] on the host: each row's nodes are its first ones, at least one; the rest is padding
    base: np.ndarray  # [B] on the host: the absolute position of node 0
    parents: Tensor | None = None  # [T] or [B, T] int64, -1 for node 0; None is a chain
    depths: Tensor | None = None  # [T] or [B, T] int64, given with `parents`
    levels: int | None = None  # the greatest depth, if the drafter knows it; saves acceptances empty levels
    verify: Tensor | None = None  # [T] or [B, T] bool; False: fed, never tested. None: all are
    sure: Tensor | None = None  # [B, T] bool; True: accepted untested; only with acceptances that have `follows_pick`
    q: Tensor | None = None  # [B, T, V] float32; None: every node is a point mass
    point: Tensor | None = None  # [B, T] bool, with `q`: True is a point mass
    early: EarlyStates | None = None  # the outputs of the first layers, if the drafter has run them
    uncontrolled: np.ndarray | None = None  # [B] bool, on the host: rows that the length controller has no part in
    queries: Queries | None = None  # of the drafter, behind the nodes: only it learns what comes out of them
    forwards: int = 0  # forwards of a drafting model
    highest: Tensor | None = None  # [] the sum of its highest logits, finite only if these are (see `models.finite`)

    @property
    def width(self) -> int:
        """Nodes T, node 0 included."""
        return self.tokens.shape[1]

    @cached_property
    def ids(self) -> Tensor:
        """[B, T] int64: `tokens` as indices; 0 for -1, which is node 0 behind the condition of an image."""
        return self.tokens.clamp(min=0)

    @cached_property
    def start(self) -> Tensor:
        """[B] int64: the absolute position of node 0."""
        return torch.from_numpy(self.base).to(self.tokens.device)

    @cached_property
    def tested(self) -> Tensor:
        """[B, T] bool: the nodes that can be accepted."""
        device = self.tokens.device
        order = torch.arange(self.width, device=device)
        real = (order < torch.from_numpy(self.sizes).to(device)[:, None]) & (order > 0)
        return real if self.verify is None else real & self.verify

    @cached_property
    def parent(self) -> Tensor:
        """[B, T] int64."""
        chain = torch.arange(-1, self.width - 1, device=self.tokens.device)
        return (chain if self.parents is None else self.parents).expand_as(self.tokens)

    @cached_property
    def depth(self) -> Tensor:
        """[B, T] int64: each node's distance from node 0 in positions."""
        batch, width = self.tokens.shape
        if self.parents is None:
            return torch.arange(width, device=self.tokens.device).expand(batch, width)
        assert self.depths is not None, "a tree comes with its depths"
        return self.depths.expand(batch, width)

    @cached_property
    def deepest(self) -> int:
        """An upper bound of the length of a path from node 0, on the host."""
        return self.width - 1 if self.levels is None else self.levels

    @staticmethod
    def none(text: Sequences) -> Draft:
        """Only each row's last committed token, so that the forward yields the next one."""
        return Draft(text.last[:, None], np.ones_like(text.length), text.length - 1)

    @staticmethod
    def chain(text: Sequences, drafted: Tensor, counts: np.ndarray, **more: Any) -> Draft:
        """The first counts[b] of `drafted` [B, K] behind each row's last committed token, cut to the widest."""
        tokens = torch.cat((text.last[:, None], drafted[:, : int(counts.max(initial=0))]), 1)
        return Draft(tokens, counts + 1, text.length - 1, **more)
