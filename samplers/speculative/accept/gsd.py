"""Accepts a token by the probability of its group: tokens with similar embeddings and similar probabilities.

Grouped Speculative Decoding for Autoregressive Image Generation, https://arxiv.org/abs/2508.07747

    x ~ q accepted  iff  u sum_C q < sum_C p;  at the first rejection  next ~ norm([p - q]+),  after the last  next ~ p
    C = those y of the `group` ranks around x's with |p(y) - p(x)| < prob and |E(y) - E(x)|^2 < dist

Tokens are ranked from the least likely on, by the logits before filters; half of the group's ranks lie below that of x.
E are the model's input embeddings. A token with fewer than half a group below it is tested alone, by p(x)/q(x), as in
the authors' code.

The reported deviation is the sum of |a(x) - min(1, p(x)/q(x))| over the tested tokens, a being this rule's acceptance
probability; averaged over drafts it bounds the total variation from the target's distribution. The rule sets no limit.

Deviates from the paper and the authors' code, in both modes: each row advances by its own accepted tokens, where the
code cuts a batch to the shortest; a point mass counts as q = 1 for its group; siblings, which the paper does not have,
are tested in order against the residual that the earlier ones left of p; x always belongs to its group. `vectorised`
compares all embeddings and never accepts a token of probability 0, such as a filtered one; `reference`, as published,
skips the comparison where one of the ranks holds an id of 10000 or above, and may accept filtered tokens.
Exact: no, except with group=0, prob=0 or dist=0. At temperature 0 it is `greedy`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from ...registry import register
from ..contracts import Acceptance, DecodeContext, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.relaxed import relaxed
from ..ops.verification import Exact, Trial, judge
from .code_features import CodeFeatures

_COMPARED = 10000  # rows of the authors' table of distances


@register("gsd", checked="golden/acceptance reference:reference.naive_relaxed.grouped")
class Grouped(Acceptance):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"prob": (0.02, 0.05, 0.15, 0.3, 0.6)}

    group: Annotated[int, "tokens compared, ranked around the drafted one"] = 14
    prob: Annotated[float, "a group's probabilities differ by less than this from the drafted token's"] = 0.15
    dist: Annotated[float, "a group's squared embedding distances from the drafted token are below this"] = 0.5
    mode: Annotated[Literal["vectorised", "reference"], "reference: with the authors' special cases"] = "vectorised"

    def __post_init__(self) -> None:
        self.require("group", "dist", least=0)
        self.require("prob", least=0, most=1)

    @property
    def exact(self) -> str:
        return "relaxed" if self.group > 1 and self.prob and self.dist else "distribution"

    def start(self, context: DecodeContext) -> CodeFeatures:
        return CodeFeatures(context.model.decoder.embedding)

    def accept(
        self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: CodeFeatures
    ) -> Verdict:
        if self.exact == "distribution":
            return judge(draft, distributions.probs, uniforms)
        return relaxed(draft, distributions.probs, uniforms, _Group(self, distributions.raw, state.table))


class _Group(Exact):
    """The rule for one round; a rejection leaves the residual of the exact test."""

    def __init__(self, method: Grouped, raw: Tensor, table: Tensor) -> None:
        self.method, self.raw, self.table = method, raw, table

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        """[N]: sum_C r q(x) / sum_C q."""
        ids, inside = self.members(r, trial)
        target = r.gather(1, trial.token[:, None])[:, 0]
        mass = torch.where(inside, r.gather(1, ids), 0).sum(1)
        draft_mass = self._draft_mass(ids, inside, trial)
        share = trial.draft_prob / draft_mass
        grouped = torch.where(draft_mass > 0, mass * share, torch.where(mass > 0, torch.inf, 0))
        if self.method.mode == "vectorised":
            grouped = torch.where(target > 0, grouped, 0)
        alone = inside.sum(1) == 0
        return torch.where(alone, target, grouped)

    def members(self, r: Tensor, trial: Trial) -> tuple[Tensor, Tensor]:
        """The ids [N, group] ranked around each tested token, and which of them form its group, if any."""
        method, vocab = self.method, r.shape[1]
        scores = self.raw[trial.row, trial.parent]
        own = scores.gather(1, trial.token[:, None])
        index = torch.arange(vocab, device=r.device)
        rank = ((scores < own) | ((scores == own) & (index < trial.token[:, None]))).sum(1)
        first = rank - method.group // 2
        ranks = first[:, None] + torch.arange(method.group, device=r.device)
        inside = (first >= 0)[:, None] & (ranks < vocab)
        ids = scores.argsort(dim=1, stable=True).gather(1, ranks.clamp(0, vocab - 1))
        near = (r.gather(1, ids) - r.gather(1, trial.token[:, None])).abs() < method.prob
        itself = ids == trial.token[:, None]
        return ids, inside & ((near & self._similar(ids, inside, trial)) | itself)

    def _similar(self, ids: Tensor, inside: Tensor, trial: Trial) -> Tensor:
        """[N, group] bool: whether each embedding is near that of the tested token."""
        known = min(len(self.table), _COMPARED) if self.method.mode == "reference" else len(self.table)
        rows = self.table[ids.clamp(max=len(self.table) - 1)].float()
        own = self.table[trial.token.clamp(max=len(self.table) - 1)].float()
        near = (rows - own[:, None]).square().sum(-1) < self.method.dist
        skipped = torch.where(inside, ids, 0).amax(1) >= known
        return near | skipped[:, None]

    def _draft_mass(self, ids: Tensor, inside: Tensor, trial: Trial) -> Tensor:
        """[N]: the probability of the group under the drafter's distribution; 1 for a point mass."""
        if trial.q is None:
            return torch.ones_like(trial.draft_prob)
        draft_mass = torch.where(inside, trial.q.gather(1, ids), 0).sum(1)
        return draft_mass if trial.is_point_mass is None else torch.where(trial.is_point_mass, 1, draft_mass)
