"""The exact test of drafted tokens, which most acceptances use; `follow` in accept/greedy.py compares with a pick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from pardec.models.kernels.choice import backend

from ...rng import wide
from ..contracts import BatchedUniforms, Draft, InverseCDFUniforms, Uniforms, Verdict
from .tree_walk import Walk, descend, reached

_NOTHING = 1e-12  # a residual without a larger entry is rounding error: p equals q, and p is sampled from


def judge(draft: Draft, p: Tensor, uniforms: Uniforms) -> Verdict:
    """The exact test of the nodes in order, and the next token from the residual distribution.

        accepted  iff  u q[x] < r[x]         rejected: r <- norm([r - q]+), for a point mass r without x

    r starts as the distribution after the current node, `p` [B, T, V] float32. With q conditional on earlier siblings
    this is speculative sampling for chains, and recursive rejection sampling for siblings with and without
    replacement (arXiv:2211.17192, 2302.01318, 2305.09781).
    """
    plain = draft.parents is None and draft.preaccepted is None
    if plain and isinstance(uniforms, InverseCDFUniforms) and backend(p.device) == "triton":
        from .verification_triton import judge_chains

        u, next_u = uniforms.accepts(draft.width), uniforms.draw_uniform("next")
        count, following, ratio = judge_chains(draft.tokens, draft.tested, p, draft.q, draft.is_point_mass, u, next_u)
        index = torch.arange(draft.width, device=p.device)
        within = draft.tested & (index <= count[:, None] + 1)
        return Verdict(index.expand_as(draft.tokens), count, following, within, ratio)
    if draft.width == 1:
        first = torch.zeros_like(draft.tokens)
        return Verdict(first, first[:, 0], uniforms.draw(p[:, 0], "next"), draft.tested, first.float())
    if (draft.parents is not None and draft.q is not None) or not isinstance(uniforms, BatchedUniforms):
        return replace(judge_siblings(draft, p, uniforms, Exact()), deviation=None)
    # Chains and trees of point masses, where the residual that a node is tested against is known beforehand.
    rows = torch.arange(len(p), device=p.device)
    target = p[rows[:, None], draft.parent.clamp(min=0), draft.ids]  # [B, T] the target's probability of each node
    denominator = drafted_probs(draft)
    if draft.parents is not None:
        denominator = (denominator - _before(draft, wide(target))).clamp(min=0)
    passed = uniforms.accepts(draft.width) * denominator < target
    passed = passed if draft.preaccepted is None else passed | draft.preaccepted
    path, count = descend(draft, draft.tested & passed)
    tested = reached(draft, path, count)
    if draft.parents is not None:  # siblings after the accepted one are not tested
        chosen = path.gather(1, draft.depth.clamp(max=path.shape[1] - 1))
        tested &= (draft.depth > count[:, None]) | (torch.arange(draft.width, device=p.device) <= chosen)
    last = path.gather(1, count[:, None])
    rejected = tested & (draft.parent == last)  # the children of the last accepted node
    r = _residual_after(draft, p[rows, last[:, 0]], rejected)
    ratio = torch.where(tested, (target / denominator.clamp(min=_NOTHING)).clamp(max=1), 0).to(p.dtype)
    return Verdict(path, count, uniforms.draw(r, "next"), tested, ratio)


def _before(draft: Draft, target: Tensor) -> Tensor:
    """[B, T]: the sum of `target` [B, T] over the earlier tested siblings of each node."""
    parent, order = draft.parent.sort(dim=1, stable=True)
    group = parent.clamp(min=0)  # node 0 is not tested: it adds 0 to its children's sums
    weight = target.masked_fill(~draft.tested, 0).gather(1, order)
    before = weight.cumsum(1) - weight
    first = torch.full_like(before, torch.inf).scatter_reduce(1, group, before, "amin")
    return torch.empty_like(before).scatter_(1, order, before - first.gather(1, group))


def residual(r: Tensor, q: Tensor) -> Tensor:
    """norm([r - q]+) over the last dimension; r itself where only rounding errors remain."""
    left = (r - q).clamp(min=0)
    return torch.where(left.amax(-1, keepdim=True) > _NOTHING, left / total(left).clamp(min=_NOTHING), r)


def without(r: Tensor, removed: Tensor) -> Tensor:
    """r [B, V] with the tokens `removed` [B, V] bool at 0, not normalised; r itself where no mass remains."""
    left = r.masked_fill(removed, 0)
    return torch.where(left.amax(-1, keepdim=True) > _NOTHING, left, r)


def total(values: Tensor) -> Tensor:
    """Sums over the last dimension (kept); a row's sum is the same alone and in a batch."""
    # Threads split the sum of a single row, but not those of two.
    return values.expand(2, *values.shape[1:]).sum(-1, keepdim=True)[:1] if len(values) == 1 else values.sum(-1, True)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """N tokens under test, with the distributions that they were sampled from."""

    row: Tensor  # [N] of the batch
    parent: Tensor  # [N] the token's parent node
    token: Tensor  # [N]
    draft_prob: Tensor  # [N] its probability under q; 1 for a point mass
    q: Tensor | None  # [N, V]; None: all are point masses
    is_point_mass: Tensor | None  # [N] bool, with `q`

    @staticmethod
    def of(draft: Draft, row: Tensor, node: Tensor, parent: Tensor, draft_probs: Tensor) -> Trial:
        """Makes the trial of `node` [N], a child of `parent` [N] in `row` [N]; `draft_probs`: see `drafted_probs`."""
        point = None if draft.is_point_mass is None else draft.is_point_mass[row, node]
        q = None if draft.q is None else draft.q[row, node]
        return Trial(row, parent, draft.ids[row, node], draft_probs[row, node], q, point)

    def exact_probability(self, r: Tensor) -> Tensor:
        """[N]: the probability that the exact test accepts, given the residual r [N, V]."""
        return (r.gather(1, self.token[:, None])[:, 0] / self.draft_prob.clamp(min=_NOTHING)).clamp(max=1)


class Rule(Protocol):
    """A rule: the test of a token, and the residual after a rejection."""

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        """[N]: the token is accepted iff u * draft_prob < this; r [N, V] is the target's residual distribution."""
        ...

    def after_rejection(self, r: Tensor, trial: Trial) -> Tensor:
        """[N, V]: the residual of r after a rejection, normalised."""
        ...


class Exact:
    """The test that preserves the target's distribution."""

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        return r.gather(1, trial.token[:, None])[:, 0]

    def after_rejection(self, r: Tensor, trial: Trial) -> Tensor:
        if trial.q is not None and trial.is_point_mass is None:
            return residual(r, trial.q)
        rest = without(r, torch.zeros_like(r, dtype=torch.bool).scatter_(1, trial.token[:, None], True))
        rest = rest / total(rest)
        if trial.q is None or trial.is_point_mass is None:
            return rest
        return torch.where(trial.is_point_mass[:, None], rest, residual(r, trial.q))


def _residual_after(draft: Draft, r: Tensor, rejected: Tensor) -> Tensor:
    """The residual of r [B, V] after the `rejected` nodes [B, T]: point masses, or one sampled token of a chain."""
    removed = torch.zeros_like(r).scatter_add_(1, draft.ids, rejected.to(r.dtype)) > 0
    if draft.q is None:
        return without(r, removed)
    node = rejected.long().argmax(1)
    rows, any_lost = torch.arange(len(r), device=r.device), rejected.any(1)
    left = residual(r, draft.q[rows, node])
    if draft.is_point_mass is not None:
        left = torch.where(draft.is_point_mass[rows, node][:, None], without(r, removed), left)
    return torch.where(any_lost[:, None], left, r)


def drafted_probs(draft: Draft) -> Tensor:
    """[B, T] float32: the probability of each node's token under q; 1 for a point mass."""
    if draft.q is None:
        return torch.ones(draft.tokens.shape, device=draft.tokens.device)
    at: Tensor = draft.q.gather(-1, draft.ids[..., None])[..., 0]
    return at if draft.is_point_mass is None else torch.where(draft.is_point_mass, 1, at)


def judge_siblings(
    draft: Draft, p: Tensor, uniforms: Uniforms, rule: Rule, rescue: Callable[[Tensor], Tensor] | None = None
) -> Verdict:
    """Like `judge`, by any rule: per level, siblings are tested one after the other against the residual r.

    `rescue` takes the children [B, T] bool of the nodes all of whose children were rejected, and returns those of them
    that are accepted all the same, at most one per row.
    The deviation is the sum of |a(x) - min(1, r(x) / q(x))| over the tested tokens, a being the rule's probability.
    """
    if rescue is None and p.device.type != "cpu":
        return _judge_in_order(draft, p, uniforms, rule)
    rows, draft_probs = torch.arange(len(p), device=p.device), drafted_probs(draft)
    walk, tested, ratio = Walk(draft), torch.zeros_like(draft.tested), torch.zeros_like(draft_probs)
    gap = torch.zeros_like(p[:, 0, 0])
    most = int(torch.zeros_like(draft.tokens).scatter_add_(1, draft.parent.clamp(min=0), draft.tested.long()).max())
    known = uniforms.accepts(draft.width) if isinstance(uniforms, BatchedUniforms) else None
    r = p[:, 0]
    for _ in range(draft.deepest):
        child = walk.children
        rank, accepted = child.long().cumsum(1), torch.zeros_like(child)
        for nth in range(1, most + 1):
            mark = child & (rank == nth)
            active, node = mark.any(1) & ~accepted.any(1), mark.long().argmax(1)
            trial = Trial.of(draft, rows, node, walk.node, draft_probs)
            target = rule.weight(r, trial)
            u = _uniforms_at(uniforms, node, active, trial.token) if known is None else known[rows, node]
            passed = active & (u * trial.draft_prob < target)
            if draft.preaccepted is not None:
                passed |= active & draft.preaccepted[rows, node]
            mark &= active[:, None]
            tested |= mark
            accept_prob = (target / trial.draft_prob.clamp(min=_NOTHING)).clamp(max=1)
            ratio = torch.where(mark, accept_prob[:, None].to(ratio.dtype), ratio)
            gap = gap + torch.where(active, (accept_prob - trial.exact_probability(r)).abs(), 0)
            r = torch.where((active & ~passed)[:, None], rule.after_rejection(r, trial), r)
            accepted |= mark & passed[:, None]
        if rescue is not None:
            accepted |= rescue(child & ~accepted.any(1, keepdim=True))
        walk.step(accepted)
        r = torch.where(walk.alive[:, None], p[rows, walk.node], r)
    return Verdict(walk.path, walk.count, uniforms.draw(r, "next"), tested, ratio, gap)


def _judge_in_order(draft: Draft, p: Tensor, uniforms: Uniforms, rule: Rule) -> Verdict:
    """`judge_siblings` node by node, for which the host need not know how many siblings there are.

    Children stand after their parents, and siblings in the order in which they are tested.
    """
    rows, draft_probs = torch.arange(len(p), device=p.device), drafted_probs(draft)
    tested, ratio, gap = torch.zeros_like(draft.tested), torch.zeros_like(draft_probs), torch.zeros_like(p[:, 0, 0])
    node = count = torch.zeros_like(draft.tokens[:, 0])
    path, order = (
        torch.zeros_like(draft.tokens[:, : draft.deepest + 1]),
        torch.arange(draft.deepest + 1, device=p.device),
    )
    known = uniforms.accepts(draft.width) if isinstance(uniforms, BatchedUniforms) else None
    r = p[:, 0]
    for at in range(1, draft.width):
        active = draft.tested[:, at] & (draft.parent[:, at] == node)
        trial = Trial.of(draft, rows, torch.full_like(node, at), node, draft_probs)
        target = rule.weight(r, trial)
        u = uniforms.accept(at, active, trial.token) if known is None else known[:, at]
        passed = active & (u * trial.draft_prob < target)
        if draft.preaccepted is not None:
            passed |= active & draft.preaccepted[:, at]
        accept_prob = (target / trial.draft_prob.clamp(min=_NOTHING)).clamp(max=1)
        tested[:, at] = active
        ratio[:, at] = torch.where(active, accept_prob.to(ratio.dtype), 0)
        gap = gap + torch.where(active, (accept_prob - trial.exact_probability(r)).abs(), 0)
        after = torch.where(active[:, None], rule.after_rejection(r, trial), r)
        r = torch.where(passed[:, None], p[:, at], after)
        node, count = torch.where(passed, at, node), count + passed
        path = torch.where(passed[:, None] & (order >= count[:, None]), at, path)
    return Verdict(path, count, uniforms.draw(r, "next"), tested, ratio, gap)


def uniforms_of_nodes(draft: Draft, uniforms: Uniforms) -> Tensor:
    """[B, T]: the uniform of each node's test, where every node is tested."""
    if isinstance(uniforms, BatchedUniforms):
        return uniforms.accepts(draft.width)
    each = [uniforms.accept(node, draft.tested[:, node], draft.ids[:, node]) for node in range(draft.width)]
    return torch.stack(each, 1)


def _uniforms_at(uniforms: Uniforms, node: Tensor, active: Tensor, token: Tensor) -> Tensor:
    """[B] uniforms for a different `node` [B] in each row, for sources that return one node at a time."""
    u = torch.ones(len(node), dtype=torch.float64, device=node.device)
    for at in set(node[active].tolist()):
        here = active & (node == at)
        u = torch.where(here, uniforms.accept(at, here, token), u)
    return u
