"""What stages are handed and what they answer: the evidence of a forward, proposals, choices, queries, hypotheses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..ops.chunked_distribution import ChunkedDistribution
from ..ops.distribution import DenseDistribution, Distribution, filter_logits
from ..request import Request
from .attention_maps import AttentionMaps
from .canvas import Canvas

_LOWEST = torch.tensor(-torch.inf, device="cpu")  # made once: a Python number would become a tensor at every call


@dataclass(frozen=True)
class Evidence:
    """What one forward predicts for the active block, rows aligned to the block.

    Attributes:
        distribution: the model's own, the mask id at -inf.
        positions: [B, W] int64, absolute.
        eligible: [B, W] bool: the positions that may be committed.
        shadow: each position predicted without its own token, where a stage `needs_shadow`.
        attention: what positions attend to, where a stage `reads_attention`.
        predictions: what the forward predicts beyond the block, where a stage `reads_row`.
        known: [B, W] bool on the host: the positions that the forward has predicted; at others the distribution means
            nothing, and may depend on other rows. None: no others than `eligible`.
    """

    distribution: Distribution
    positions: Tensor
    eligible: Tensor
    request: Request
    shadow: Distribution | None = None
    attention: AttentionMaps | None = None
    predictions: Predictions | None = None
    known: np.ndarray | None = None

    @property
    def predicted(self) -> Tensor:
        """[B, W] bool: the positions that the forward has predicted."""
        return self.eligible if self.known is None else torch.from_numpy(self.known).to(self.eligible.device)

    @property
    def logits(self) -> Tensor:
        """[B, W, V] float32."""
        return self.distribution.logits

    @cached_property
    def filtered(self) -> Distribution:
        """The distribution that candidates are sampled from: after temperature, top-p, top-k and min-p."""
        temperature, filters = self.request.temperature, self.request.filters
        if filters:
            return self.distribution.mapped(partial(filter_logits, temperature=temperature, **filters))
        return self.distribution.scaled(temperature) if temperature else self.distribution

    def measured(self, of: Literal["raw", "filtered"]) -> Distribution:
        """The distribution that a proposer's parameter `of` names."""
        return self.distribution if of == "raw" else self.filtered

    def draw(self, canvas: Canvas) -> Tensor:
        """A candidate per position, [B, W] int64: the argmax at temperature 0, else a keyed draw from `filtered`.

        On a CPU only open positions are drawn, unless a stage revises; the others keep their tokens.
        """
        if not self.request.temperature:
            return self.distribution.greedy[0]
        uniform, vocab, positions = self.request.source.uniform, self.distribution.vocab, self.positions.flatten()
        every = canvas.revises or positions.device.type != "cpu"
        flat = np.arange(len(positions)) if every else np.flatnonzero(self.eligible.numpy())

        def noise(some: np.ndarray) -> Tensor:
            row, at = some // self.positions.shape[1], torch.from_numpy(some).to(positions.device)
            return uniform(canvas.rows[row], canvas.step[row], positions[at][:, None], "token", vocab)[:, 0]

        tokens = canvas.tokens.gather(1, self.positions)
        index = torch.from_numpy(flat).to(positions.device)
        return tokens.flatten().index_copy_(0, index, self.filtered.draw(flat, noise)).view(tokens.shape)

    def take(self, rows: np.ndarray) -> Evidence:
        """The evidence of these rows, in this order; one may be repeated. Only of a forward's own distribution."""
        distribution, at = self.distribution, torch.from_numpy(rows).to(self.positions.device)
        assert isinstance(distribution, DenseDistribution | ChunkedDistribution), "no stage has changed it"
        index = distribution.index
        if index is None:
            index = torch.arange(self.positions.numel(), device=at.device).view(self.positions.shape)
        attention = None if self.attention is None else self.attention.take(at)
        return Evidence(
            distribution.reindexed(index[at]),
            self.positions[at],
            self.eligible[at],
            self.request,
            attention=attention,
            known=None if self.known is None else self.known[rows],
        )

    def propose(self, tokens: Tensor, score: Tensor) -> Proposal:
        """The candidates with their scores where eligible."""
        return Proposal(tokens, torch.where(self.eligible, score, _LOWEST), self)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate and its score for every position of the active block; higher is surer."""

    tokens: Tensor  # [B, W] int64
    score: Tensor  # [B, W] float32, -inf where not eligible
    evidence: Evidence

    @property
    def eligible(self) -> Tensor:
        return self.evidence.eligible


@dataclass(frozen=True, slots=True)
class Choice:
    """What a select returns if it names the tokens as well."""

    which: Tensor  # [B, W] bool
    tokens: Tensor  # [B, W] int64


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """Which positions a forward queries: [start, stop) of each row, or any set as a mask. Arrays live on the host.

    The loop itself adds the rows whose output predicts the wanted positions (one to the left in shifted families).
    """

    start: np.ndarray  # [B]
    stop: np.ndarray  # [B]
    mask: Tensor | None = None  # [B, L] bool; when given it replaces the span
    must: np.ndarray | None = None  # [B] bool: commit exactly the block's first position if it is open
    only: Tensor | None = None  # [B, W] bool, on the host: nothing else of the block is to be predicted
    # [B] bool: of rows whose layers compute a share of the queries, `Cache.layer_reuse`.
    similar: np.ndarray | None = None
    shifted: np.ndarray | None = None  # [B] bool: predictions stand one position to the left, in whatever family


class Predictions(Protocol):
    """What a forward predicts beyond the active block: raw distributions, guidance included, the mask id at -inf."""

    def has(self, positions: Tensor) -> Tensor:
        """Whether this forward predicts each of `positions` [B, K]: bool [B, K]."""
        ...

    def at(self, positions: Tensor) -> Distribution:
        """The model's distribution at `positions` [B, K]; meaningless where `has` is False."""
        ...


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """What the hypotheses of all rows came to in one forward; hypotheses of a row stand together, by number.

    Letters: N hypotheses of n rows.
    """

    row: np.ndarray  # [N] which live row each is of
    number: np.ndarray  # [N] from 0, the row itself
    canvas: Canvas  # of all N
    proposal: Proposal  # [N, W] by the forward of each
    chosen: Tensor  # [N, W] bool: what the sampler commits to each
    tokens: Tensor  # [N, W] int64
    ended: np.ndarray  # [N] bool: a finish stage ends the row there
