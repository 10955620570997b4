"""Lets a drafted token borrow probability from its nearest neighbours in the codebook.

LANTERN: Accelerating Visual Autoregressive Models with Relaxed Speculative Decoding, https://arxiv.org/abs/2410.03355
LANTERN++: Enhanced Relaxed Speculative Decoding with Static Tree Drafting, https://arxiv.org/abs/2502.06352 (ratio)

    reference:   x accepted  iff  u q(x) < p(x) + c;  c = the most mass of x's nearest m <= k with c <= delta, or, with
                 ratio, c <= (ratio - 1) p(x);  rejected: next sibling, against p without x's neighbourhood
    principled:  p~ = p with at most delta moved, from tokens with p > q to their neighbours with q > p;
                 then `speculative` with p~ in place of p

The output of principled mode, the default, has the distribution p~, within delta of p in total variation; the moved
probability is reported, summed over the tested nodes. The published rule lets p~ depend on the sampled token; no bound
on its error is known and none is reported: with delta = 0.25 it can be off by 1. Principled mode raises the acceptance
probability by at most delta; for more use mode=reference.

Neighbours are the nearest entries of the model's image codebook, or of its input embeddings where it has no codebook;
k may exceed their number. In principled mode a token removed by the target's filters borrows nothing, and siblings that
are point masses share what their neighbours give.

Temperature 0: x is accepted iff p(x) + c exceeds every other p, p being the softmax of the logits, and the longest path
of such tokens is taken; a row's deviation is then the number of its tokens that are not the most likely ones.

Deviates from the authors' code: siblings of probability 0 under q are skipped in both modes; delta=0 is the exact rule
in reference mode too, where the code would still clear the neighbourhoods of rejected tokens. As published, reference
mode falls back on the uniform distribution where clearing leaves no probability. Tokens that the request's filters
exclude are accepted by this rule; the loop ends the path before them, and draws the next token from the target.
Exact: no, except with k=0, delta=0 or ratio=1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...limits import MAX_SCALE
from ...ops.neighbourhood import mass_within
from ...registry import register
from ..contracts import Acceptance, DecodeContext, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.relaxed import relaxed
from ..ops.transport import move_probability
from ..ops.tree_walk import longest, reached
from ..ops.verification import Trial, judge, total
from .code_features import CodeFeatures, token_neighbours


@register(
    "lantern",
    stage="accept",
    paper="arXiv:2410.03355",
    checked="golden/acceptance "
    "reference:reference.naive_relaxed.transported reference:reference.naive_relaxed.published",
)
@dataclass(frozen=True)
class Lantern(Acceptance):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"delta": (0.05, 0.1, 0.2, 0.3, 0.5)}

    k: Annotated[int, "nearest neighbours from which a token may borrow probability"] = 1000
    delta: Annotated[
        float, "most probability borrowed: by a token (reference), or by all children of a node (principled)"
    ] = 0.1
    ratio: Annotated[
        float | None, "greatest factor by which a token's probability grows; in reference mode it replaces delta"
    ] = None
    mode: Annotated[Literal["principled", "reference"], "reference: as published, without a bound"] = "principled"

    def __post_init__(self) -> None:
        self.require("k", least=0, hint="k=0 is the exact rule")
        if not 0 <= self.delta <= 1:
            raise SpecError(
                f"lantern: delta must be a probability in [0, 1], got {self.delta}",
                hint="ratio=5 bounds a multiple of p",
            )
        self.require("ratio", least=1, hint="ratio=1 is the exact rule")
        self.require("ratio", most=MAX_SCALE, hint="delta=1 sets no bound")

    @property
    def exact(self) -> str:
        return "distribution" if not self.k or not self.delta or self.ratio == 1 else "relaxed"

    def start(self, context: DecodeContext) -> CodeFeatures | None:
        if self.exact == "distribution":
            return None
        # The published rule clears one neighbour more than it borrows from.
        nearest = token_neighbours(context.model, self.k + 1)
        return CodeFeatures(nearest.to(context.text.device))

    def accept(
        self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: CodeFeatures | None
    ) -> Verdict:
        if self.exact == "distribution" or state is None:
            return judge(draft, distributions.probs, uniforms)
        nearest = state.table
        if distributions.greedy:
            return self._greedy(draft, distributions, nearest)
        if self.mode == "reference":
            return replace(relaxed(draft, distributions.probs, uniforms, _Published(self, nearest)), deviation=None)
        distribution, off = move_probability(draft, distributions.probs, nearest[:, : self.k], self.delta, self.ratio)
        verdict = judge(draft, distribution, uniforms)
        on_path = torch.arange(verdict.path.shape[1], device=off.device) <= verdict.count[:, None]
        return replace(verdict, deviation=off.gather(1, verdict.path).masked_fill(~on_path, 0).cumsum(1)[:, -1])

    def neighbour_mass(self, r: Tensor, token: Tensor, nearest: Tensor) -> tuple[Tensor, Tensor]:
        """[N]: the mass that each `token` [N] may borrow under r [N, V], and [N]: whether a neighbour lends any."""
        own = r.gather(1, token[:, None])
        limit = torch.full_like(own, self.delta) if self.ratio is None else (self.ratio - 1) * own
        if self.mode == "principled":
            limit = torch.where(own > 0, limit.clamp(max=self.delta), -1)
        return mass_within(r, token, nearest[:, : self.k], limit[:, 0])

    def _greedy(self, draft: Draft, distributions: TargetDistributions, nearest: Tensor) -> Verdict:
        """The longest path of tokens that are the most likely ones once borrowed mass is added."""
        p, above = distributions.logits.softmax(-1), draft.parent.clamp(min=0)
        rows = torch.arange(len(p), device=p.device)[:, None]
        behind, top = p[rows, above].flatten(0, 1), distributions.pick.gather(1, above).flatten()
        token = draft.ids.flatten()
        boosted = behind.gather(1, token[:, None])[:, 0] + self.neighbour_mass(behind, token, nearest)[0]
        best = behind.gather(1, top[:, None])[:, 0]
        likeliest = (token == top).view_as(draft.tokens)
        beats = ((boosted > best) | ((boosted == best) & (token < top))).view_as(draft.tokens)
        accepted = draft.tested & (likeliest | beats)
        path, count = longest(draft, accepted, torch.zeros_like(p[..., 0]))
        on_path = torch.arange(path.shape[1], device=p.device) <= count[:, None]
        on_path[:, 0] = False  # node 0 was committed before
        other = (on_path & ~likeliest.gather(1, path)).sum(1).to(p.dtype)
        following = distributions.pick.gather(1, path.gather(1, count[:, None]))[:, 0]
        deviation = other if self.mode == "principled" else None
        return Verdict(path, count, following, reached(draft, path, count), accepted.to(p.dtype), deviation)


class _Published:
    """The rule as published, on the residual of p."""

    def __init__(self, method: Lantern, nearest: Tensor) -> None:
        self.method, self.nearest = method, nearest

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        target = r.gather(1, trial.token[:, None])[:, 0] + self.method.neighbour_mass(r, trial.token, self.nearest)[0]
        return torch.where(trial.bar > 0, target, 0)

    def after_rejection(self, r: Tensor, trial: Trial) -> Tensor:
        """Clears a rejected token's neighbourhood: in r for a point mass, else in q, which is subtracted from r."""
        has_near = self.method.neighbour_mass(r, trial.token, self.nearest)[1]
        around = self.nearest[trial.token, : self.method.k + 1].long()
        cleared = torch.zeros_like(r, dtype=torch.bool).scatter_(1, around, True) & has_near[:, None]
        itself = torch.zeros_like(cleared).scatter_(1, trial.token[:, None], True)
        rest = r.masked_fill(cleared | itself, 0)
        if trial.q is not None:
            of_distribution = (r - trial.q.masked_fill(cleared, 0)).clamp(min=0)
            rest = (
                of_distribution
                if trial.is_point_mass is None
                else torch.where(trial.is_point_mass[:, None], rest, of_distribution)
            )
        mass = total(rest)
        rest = torch.where(mass > 0, rest / mass, 1 / r.shape[1])
        return torch.where((trial.bar > 0)[:, None], rest, r)
