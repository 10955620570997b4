"""One round: what the target predicts behind a draft, what is accepted of it, and what comes of that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..ops.rank import argmax
from .drafts import Draft
from .uniform_contracts import Uniforms


@dataclass(frozen=True, eq=False)
class TargetDistributions:
    """The target's predictions behind every node: index i is the distribution of the token that follows node i."""

    raw: Tensor  # [B, T, V] float32 logits of the model, guidance included, nothing else changed
    logits: Tensor  # [B, T, V] float32 after the logits processors, temperature and filters
    greedy: bool  # temperature 0: a point mass at the argmax
    states: Tensor | None = None  # [B, T, S] the acceptance's `target_states` at every node
    extended: Tensor | None = None  # [B, T', V] as `raw`, behind the nodes of the draft that `extend` returned

    @cached_property
    def pick(self) -> Tensor:
        """[B, T] int64: the likeliest token behind each node; the lowest id on ties."""
        return argmax(self.logits)

    @cached_property
    def probs(self) -> Tensor:
        """[B, T, V] float32: the probabilities of `logits`; a point mass at temperature 0."""
        if self.greedy:
            return torch.zeros_like(self.logits).scatter_(-1, self.pick[..., None], 1.0)
        return self.logits.softmax(-1)


@dataclass(frozen=True, eq=False)
class Verdict:
    """The decision of an acceptance, row by row."""

    path: Tensor  # [B, D] int64: node 0 and the accepted nodes in order; meaningless behind `count`
    count: Tensor  # [B] int64 accepted nodes, node 0 not counted
    next: Tensor  # [B] int64 the token behind the path: recovered or bonus
    tested: Tensor | None = None  # [B, T] bool: the nodes whose test was reached
    ratio: Tensor | None = None  # [B, T] float32: the acceptance probability of each tested node
    deviation: Tensor | None = None  # [B] float32: accumulated deviation of a relaxed rule; see each rule
    pick: Tensor | None = None  # [B, T] int64: the token that follows each node, if the rule determines all of them


def without_excluded(draft: Draft, distributions: TargetDistributions, verdict: Verdict, uniforms: Uniforms) -> Verdict:
    """The verdict without tokens that the request's constraints and filters exclude: for rules that are relaxed.

    A path ends before the first such token, and the token that follows it is then the target's own.
    """
    logits, path = distributions.logits, verdict.path
    rows = torch.arange(len(path), device=path.device)
    inside = torch.arange(path.shape[1], device=path.device) <= verdict.count[:, None]
    path = path.masked_fill(~inside, 0)
    tokens = draft.ids.gather(1, path)
    stands = logits[rows[:, None], path[:, :-1], tokens[:, 1:]] > -torch.inf
    count = (stands & inside[:, 1:]).cumprod(1).sum(1)
    last = path.gather(1, count[:, None])[:, 0]
    stays = (count == verdict.count) & (logits[rows, last, verdict.next] > -torch.inf)
    if path.device.type == "cpu" and bool(stays.all()):  # elsewhere the host would wait
        return verdict
    own = distributions.pick[rows, last]
    if not distributions.greedy:
        own = uniforms.draw(logits[rows, last].softmax(-1), "next after an excluded one")
    return replace(verdict, count=count, next=torch.where(stays, verdict.next, own))


@dataclass(frozen=True, eq=False)
class RoundResult:
    """One round, as drafters and length controllers observe it after the commit."""

    draft: Draft
    verdict: Verdict
    distributions: TargetDistributions
    before: np.ndarray  # [B] lengths before the round's commit
    gained: np.ndarray  # [B] tokens committed, cut at an end token or the length limit
    states: Tensor | None = None  # [B, T, S] the drafter's `target_states` at every node, and behind them its queries'

    def levels(self) -> tuple[np.ndarray, np.ndarray]:
        """The accepted and the drafted levels of each row, both [B], on the host; 0 of rows that are `uncontrolled`."""
        drafted = torch.where(self.draft.tested, self.draft.depth, 0).amax(1).cpu().numpy()
        accepted, others = self.verdict.count.cpu().numpy(), self.draft.uncontrolled
        return (accepted, drafted) if others is None else (np.where(others, 0, accepted), np.where(others, 0, drafted))
