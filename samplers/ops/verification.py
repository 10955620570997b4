"""The two rules that most acceptances are made of: following the target's own choice, and the exact test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.kernels.choice import backend

from ..rng import wide
from ..speculative.contracts import AtOnce, Draft, Numbered, Uniforms, Verdict
from .tree_walk import Walk, descend, reached

_NOTHING = 1e-12  # a residual without a heavier token is rounding: p and q are the same, and p is drawn from


def follow(draft: Draft, pick: Tensor) -> Verdict:
    """From node 0 on, descends to the child that holds `pick` [B, T] of its parent, as long as there is one.

    Greedy decoding with the argmax as the pick; an exact sample with a draw from each node's law.
    """
    if draft.width == 1:
        first = torch.zeros_like(draft.tokens)
        return Verdict(first, first[:, 0], pick[:, 0], first.bool(), first.float(), pick=pick)
    if draft.parents is None:
        same = draft.tested & pad(draft.tokens[:, 1:] == pick[:, :-1], (1, 0))
    else:
        same = draft.tested & (draft.tokens == pick.gather(1, draft.parent.clamp(min=0)))
    taken = same if draft.sure is None else same | (draft.tested & draft.sure)
    path, count = descend(draft, taken)
    end = path.gather(1, count[:, None])
    tested = reached(draft, path, count)
    if draft.sure is not None:
        tested &= ~draft.sure
    return Verdict(path, count, pick.gather(1, end)[:, 0], tested, same.float(), pick=pick)


def judge(draft: Draft, p: Tensor, uniforms: Uniforms) -> Verdict:
    """The exact test of the nodes in order, and the next token from what is left of the law.

        accepted  iff  u q[x] < r[x]         rejected: r <- norm([r - q]+), for a point mass r without x

    r is the law of the current node, `p` [B, T, V] float32. With q the law of each node given its earlier siblings
    this is speculative sampling for chains, and recursive rejection sampling for siblings with and without
    replacement (arXiv:2211.17192, 2302.01318, 2305.09781).
    """
    if draft.parents is None and isinstance(uniforms, Numbered) and backend(p.device) == "triton":
        from .verification_triton import judge_chains

        u, next_u = uniforms.accepts(draft.width), uniforms.number("next")
        count, following, ratio = judge_chains(draft.tokens, draft.tested, p, draft.q, draft.point, u, next_u)
        index = torch.arange(draft.width, device=p.device)
        within = draft.tested & (index <= count[:, None] + 1)
        return Verdict(index.expand_as(draft.tokens), count, following, within, ratio)
    if draft.width == 1:
        first = torch.zeros_like(draft.tokens)
        return Verdict(first, first[:, 0], uniforms.draw(p[:, 0], "next"), draft.tested, first.float())
    if draft.parents is not None and draft.q is not None:
        return replace(in_turn(draft, p, uniforms, Exact()), deviation=None)
    rows = torch.arange(len(p), device=p.device)
    mine = p[rows[:, None], draft.parent.clamp(min=0), draft.ids]  # [B, T] what the target gives each node
    bar = at_token(draft)
    # A point mass that was rejected leaves its siblings what the law did not give it: they are tested against less.
    if draft.parents is None and isinstance(uniforms, AtOnce):
        taken = draft.tested & (uniforms.accepts(draft.width) * bar < mine)
        path, count = descend(draft, taken)
        tested = reached(draft, path, count)
    else:
        path, count, tested, bar = _walked(draft, mine, bar, uniforms)
    here = path.gather(1, count[:, None])
    lost = tested & (draft.parent == here)  # the last node's children: none was accepted
    r = _left(draft, p[rows, here[:, 0]], lost)
    ratio = torch.where(tested, (mine / bar.clamp(min=_NOTHING)).clamp(max=1), 0).to(p.dtype)
    return Verdict(path, count, uniforms.draw(r, "next"), tested, ratio)


def residual(r: Tensor, q: Tensor) -> Tensor:
    """norm([r - q]+) over the last dimension; r itself where nothing but rounding is left."""
    left = (r - q).clamp(min=0)
    return torch.where(left.amax(-1, keepdim=True) > _NOTHING, left / total(left).clamp(min=_NOTHING), r)


def without(r: Tensor, gone: Tensor) -> Tensor:
    """r [B, V] without the tokens `gone` [B, V] bool, not normalised; r itself where nothing is left."""
    left = r.masked_fill(gone, 0)
    return torch.where(left.amax(-1, keepdim=True) > _NOTHING, left, r)


def total(values: Tensor) -> Tensor:
    """Sums of the last dimension, kept. A long row alone adds up in the order in which it does in a batch."""
    # Several threads share the sum of one row, but never that of two.
    return values.expand(2, *values.shape[1:]).sum(-1, keepdim=True)[:1] if len(values) == 1 else values.sum(-1, True)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One token each, tested in N places against the laws that they were drawn from."""

    row: Tensor  # [N] of the batch
    above: Tensor  # [N] the node behind which the token stands
    token: Tensor  # [N]
    bar: Tensor  # [N] what the law it was drawn from gives it; 1 for a point mass
    q: Tensor | None  # [N, V] that law; None: all are point masses
    point: Tensor | None  # [N] bool, with `q`

    @staticmethod
    def of(draft: Draft, row: Tensor, node: Tensor, above: Tensor, bars: Tensor) -> Trial:
        """The `node` [N] of each `row` [N], a child of `above` [N]; `bars` [B, T] of all nodes."""
        point = None if draft.point is None else draft.point[row, node]
        q = None if draft.q is None else draft.q[row, node]
        return Trial(row, above, draft.ids[row, node], bars[row, node], q, point)

    def plain(self, r: Tensor) -> Tensor:
        """[N]: how likely the exact test accepts under the laws r [N, V]."""
        return (r.gather(1, self.token[:, None])[:, 0] / self.bar.clamp(min=_NOTHING)).clamp(max=1)


class Rule(Protocol):
    """How a token is tested, and what a rejection leaves."""

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        """[N]: the token is accepted iff u bar < this; r [N, V] is what is left of the target's law."""
        ...

    def left(self, r: Tensor, trial: Trial) -> Tensor:
        """[N, V]: what a rejection leaves of r, normalised."""
        ...


class Exact:
    """The test that keeps the target's law."""

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        return r.gather(1, trial.token[:, None])[:, 0]

    def left(self, r: Tensor, trial: Trial) -> Tensor:
        if trial.q is not None and trial.point is None:
            return residual(r, trial.q)
        spared = without(r, torch.zeros_like(r, dtype=torch.bool).scatter_(1, trial.token[:, None], True))
        spared = spared / total(spared)
        if trial.q is None or trial.point is None:
            return spared
        return torch.where(trial.point[:, None], spared, residual(r, trial.q))


def _walked(draft: Draft, mine: Tensor, bar: Tensor, uniforms: Uniforms) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Level by level: path, count, the nodes that were tested, and against what, all [B, T]."""
    walk, tested, against = Walk(draft), torch.zeros_like(draft.tested), wide(bar)
    known = uniforms.accepts(draft.width) if isinstance(uniforms, AtOnce) else None
    weight = wide(mine)
    for _ in range(draft.deepest):
        child = walk.children
        before = pad(torch.where(child, weight, 0).cumsum(1)[:, :-1], (1, 0))
        level = (bar - before).clamp(min=0)
        u = asked(draft, uniforms, child, level, weight) if known is None else known
        first = walk.step(child & (u * level < weight))
        child &= walk.index <= first[:, None]
        tested |= child
        against = torch.where(child, level, against)
    return walk.path, walk.count, tested, against


def asked(draft: Draft, uniforms: Uniforms, child: Tensor, level: Tensor, weight: Tensor) -> Tensor:
    """[B, T] uniforms of one level, asked for in order, each only where its test is held."""
    u, going = torch.ones_like(weight), torch.ones_like(child[:, 0])
    for node in range(1, draft.width):
        held = child[:, node] & going
        if held.any():
            u[:, node] = uniforms.accept(node, held, draft.tokens[:, node])
            going = going & ~(held & (u[:, node] * level[:, node] < weight[:, node]))
    return u


def _left(draft: Draft, r: Tensor, lost: Tensor) -> Tensor:
    """What the rejected nodes `lost` [B, T] leave of the law r [B, V]; a law was rejected in chains only, and alone."""
    gone = torch.zeros_like(r).scatter_add_(1, draft.ids, lost.to(r.dtype)) > 0
    if draft.q is None:
        return without(r, gone)
    node = lost.long().argmax(1)
    rows, any_lost = torch.arange(len(r), device=r.device), lost.any(1)
    left = residual(r, draft.q[rows, node])
    if draft.point is not None:
        left = torch.where(draft.point[rows, node][:, None], without(r, gone), left)
    return torch.where(any_lost[:, None], left, r)


def at_token(draft: Draft) -> Tensor:
    """[B, T] float32: what the law that each node was drawn from gives its token; 1 for a point mass."""
    if draft.q is None:
        return torch.ones(draft.tokens.shape, device=draft.tokens.device)
    at: Tensor = draft.q.gather(-1, draft.ids[..., None])[..., 0]
    return at if draft.point is None else torch.where(draft.point, 1, at)


def in_turn(draft: Draft, p: Tensor, uniforms: Uniforms, rule: Rule) -> Verdict:
    """`judge` by any rule: level by level, and within one sibling by sibling, over what is left of r.

    The deviation is the sum of |a(x) - min(1, r(x) / q(x))| over the tested tokens, a being the rule's chance.
    """
    rows, bars = torch.arange(len(p), device=p.device), at_token(draft)
    walk, tested, ratio = Walk(draft), torch.zeros_like(draft.tested), torch.zeros_like(bars)
    gap = torch.zeros_like(p[:, 0, 0])
    most = int(torch.zeros_like(draft.tokens).scatter_add_(1, draft.parent.clamp(min=0), draft.tested.long()).max())
    known = uniforms.accepts(draft.width) if isinstance(uniforms, AtOnce) else None
    r = p[:, 0]
    for _ in range(draft.deepest):
        child = walk.children
        place, taken = child.long().cumsum(1), torch.zeros_like(child)
        for turn in range(1, most + 1):
            mark = child & (place == turn)
            held, node = mark.any(1) & ~taken.any(1), mark.long().argmax(1)
            trial = Trial.of(draft, rows, node, walk.here, bars)
            mine = rule.weight(r, trial)
            u = _one(uniforms, node, held, trial.token) if known is None else known[rows, node]
            won = held & (u * trial.bar < mine)
            mark &= held[:, None]
            tested |= mark
            uniform = (mine / trial.bar.clamp(min=_NOTHING)).clamp(max=1)
            ratio = torch.where(mark, uniform[:, None].to(ratio.dtype), ratio)
            gap = gap + torch.where(held, (uniform - trial.plain(r)).abs(), 0)
            r = torch.where((held & ~won)[:, None], rule.left(r, trial), r)
            taken |= mark & won[:, None]
        walk.step(taken)
        r = torch.where(walk.alive[:, None], p[rows, walk.here], r)
    return Verdict(walk.path, walk.count, uniforms.draw(r, "next"), tested, ratio, gap)


def _one(uniforms: Uniforms, node: Tensor, held: Tensor, token: Tensor) -> Tensor:
    """[B] uniforms, of another `node` [B] in each row, for sources that know one at a time."""
    u = torch.ones(len(node), dtype=torch.float64, device=node.device)
    for at in set(node[held].tolist()):
        here = held & (node == at)
        u = torch.where(here, uniforms.accept(at, here, token), u)
    return u
