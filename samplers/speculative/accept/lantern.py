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

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import SpecError

from ...limits import MAX_SCALE
from ...ops.neighbourhood import mass_within, neighbour_sums
from ...registry import register
from ...rng import wide
from ..contracts import Acceptance, DecodeContext, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.relaxed import relaxed
from ..ops.tree_walk import longest, reached
from ..ops.verification import Trial, judge, total
from .code_features import CodeFeatures, token_neighbours


@register(
    "lantern",
    checked="golden/acceptance "
    "reference:reference.naive_relaxed.transported reference:reference.naive_relaxed.published",
)
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
        return torch.where(trial.draft_prob > 0, target, 0)

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
        return torch.where((trial.draft_prob > 0)[:, None], rest, r)


_DENSE = 1024  # ids up to which all pairs make one matrix
_GATHERED = 1 << 24  # elements gathered at a time, for more ids


def move_probability(
    draft: Draft, p: Tensor, nearest: Tensor, delta: float, ratio: float | None
) -> tuple[Tensor, Tensor]:
    """A distribution p~ [B, T, V] for each p, and its total variation from p, [B, T], at most `delta`.

    `nearest` [V, K] are the ids that may give to each id. All children of a node share one p~, which depends only
    on what is known before they are sampled: the q of the first child, or the point masses before any sampled
    child. A token receives at most what it lacks under p, and at most (ratio - 1) times its probability; one of
    probability 0 receives nothing.
    """
    index = torch.arange(draft.width, device=p.device)
    child = torch.where(draft.tested, index, draft.width)
    first = _lowest(draft, child)
    sampled = draft.tested & ~_points(draft)
    leading = draft.tested & (index < _lowest(draft, torch.where(sampled, index, draft.width)).gather(1, _above(draft)))
    distribution, off = p.clone(), torch.zeros_like(p[..., 0])
    has = first < draft.width
    if p.device.type == "cpu":
        row, node = has.nonzero(as_tuple=True)
    else:  # reading which nodes have children would synchronize: the others are left as they are
        every = torch.arange(has.numel(), device=p.device)
        row, node = every // draft.width, every % draft.width
    if not len(row) or not nearest.shape[1]:
        return distribution, off
    target = wide(p[row, node])
    # Each point mass wants 1 - p(x), and only other tokens give.
    rows = torch.arange(len(p), device=p.device)[:, None].expand_as(leading)
    points = torch.zeros_like(p, dtype=torch.int32)
    points.index_put_((rows, _above(draft), draft.ids), leading.int(), accumulate=True)
    wanted = points[row, node] > 0
    room = torch.where(wanted, 1 - target, 0)
    spare = target.masked_fill(wanted, 0)
    if draft.q is not None:
        child = first[row, node].clamp(max=draft.width - 1)
        drafted = wide(draft.q[row, child])
        certain = _points(draft)[row, child][:, None]
        room = torch.where(certain, room, (drafted - target).clamp(min=0))
        spare = torch.where(certain, spare, (target - drafted).clamp(min=0))
    room = room.masked_fill((target <= 0) | ~has[row, node][:, None], 0)
    if ratio is not None:
        room = torch.minimum(room, (ratio - 1) * target)
    gain, mass = _transport(room, spare, nearest, delta)
    distribution[row, node] = (target + gain).clamp(min=0).to(p.dtype)
    off[row, node] = mass.to(p.dtype)
    return distribution, off


def _transport(room: Tensor, spare: Tensor, nearest: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """The gain of each token [N, V], and the mass moved [N].

    Every token offers `spare` [N, V] to the tokens it is a neighbour of, in proportion to their `room` [N, V]. None
    receives more than its room; where more than `delta` would move, all amounts are scaled down.
    """
    dense = nearest.shape[0] <= _DENSE
    takers = 1 if dense else max(int((room > 0).sum(1).max()), 1)
    count = len(room) if dense else max(_GATHERED // (takers * nearest.shape[1]), 1)
    gain, mass = torch.zeros_like(room), torch.zeros_like(room[:, 0])
    for start in range(0, len(room), count):
        part = slice(start, start + count)
        wish = room[part]
        to_givers, to_takers = _matrix(wish, nearest) if dense else _gathers(wish, nearest, takers)
        demand = to_givers(wish)
        share = torch.where(demand > 0, spare[part] / demand, 0)  # share of each wish that a token can grant
        granted = to_takers(share)
        capped = wish * torch.where(granted > 1, 1 / granted, 1)
        received = capped * granted
        total = received.sum(1, keepdim=True)
        scale = torch.where(total > delta, delta / total, 1)
        gain[part] = scale * (received - share * to_givers(capped))
        mass[part] = (scale * total)[:, 0]
    return gain, mass


Sums = Callable[[Tensor], Tensor]  # [N, V] -> [N, V]


def _matrix(wish: Tensor, nearest: Tensor) -> tuple[Sums, Sums]:
    """Two functions that sum per token: over the tokens whose neighbour it is, and over its neighbours."""
    adjacency = wish.new_zeros(len(nearest), len(nearest)).scatter_(1, nearest.long(), 1)
    return lambda values: values @ adjacency, lambda values: values @ adjacency.T


def _gathers(wish: Tensor, nearest: Tensor, takers: int) -> tuple[Sums, Sums]:
    """Like `_matrix` without a matrix of all pairs, over only the up to `takers` tokens with a `wish` [N, V]."""
    ids = wish.topk(takers).indices
    near = nearest[ids].long()  # [N, takers, K]
    targets = near.flatten(1)

    def to_givers(values: Tensor) -> Tensor:
        each = values.gather(1, ids)[..., None].expand_as(near)
        return torch.zeros_like(values).scatter_add_(1, targets, each.flatten(1))

    def to_takers(values: Tensor) -> Tensor:
        return torch.zeros_like(values).scatter_(1, ids, neighbour_sums(values, ids, nearest, near))

    return to_givers, to_takers


def _points(draft: Draft) -> Tensor:
    """[B, T] bool: the nodes that are point masses."""
    if draft.q is None:
        return torch.ones_like(draft.tested)
    return torch.zeros_like(draft.tested) if draft.is_point_mass is None else draft.is_point_mass


def _above(draft: Draft) -> Tensor:
    return draft.parent.clamp(min=0)


def _lowest(draft: Draft, value: Tensor) -> Tensor:
    """[B, T]: the lowest `value` [B, T] among each node's children; T for none."""
    if draft.parents is None:
        return pad(value[:, 1:], (0, 1), value=draft.width)
    none = torch.full_like(value, draft.width)
    return none.scatter_reduce(1, _above(draft), torch.where(draft.tested, value, draft.width), "amin")
