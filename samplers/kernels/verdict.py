"""The two rules that most acceptances are made of: following the target's own choice, and the exact test."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.samplers.rng import wide
from pardec.samplers.verifying import AtOnce, Chances, Draft, Verdict

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


def descend(draft: Draft, taken: Tensor) -> tuple[Tensor, Tensor]:
    """The path [B, D] from node 0 through `taken` [B, T], at each level the first such child, and its length [B]."""
    index = torch.arange(draft.width, device=taken.device)
    if draft.parents is None:
        return index.expand_as(draft.tokens), taken[:, 1:].long().cumprod(1).sum(1)
    walk = Walk(draft)
    for _ in range(draft.deepest):
        walk.step(taken & walk.children)
    return walk.path, walk.count


def judge(draft: Draft, p: Tensor, chances: Chances) -> Verdict:
    """The exact test of the nodes in order, and the next token from what is left of the law.

        accepted  iff  u q[x] < r[x]         rejected: r <- norm([r - q]+), for a point mass r without x

    r is the law of the current node, `p` [B, T, V] float32. With q the law of each node given its earlier siblings
    this is speculative sampling for chains, and recursive rejection sampling for siblings with and without
    replacement (arXiv:2211.17192, 2302.01318, 2305.09781).
    """
    if draft.width == 1:
        first = torch.zeros_like(draft.tokens)
        return Verdict(first, first[:, 0], chances.draw(p[:, 0], "next"), draft.tested, first.float())
    if draft.parents is not None and draft.q is not None:
        return _siblings(draft, p, chances)
    rows = torch.arange(len(p), device=p.device)
    mine = p[rows[:, None], draft.parent.clamp(min=0), draft.tokens]  # [B, T] what the target gives each node
    bar = _at_token(draft)
    # A point mass that was rejected leaves its siblings what the law did not give it: they are tested against less.
    if draft.parents is None and isinstance(chances, AtOnce):
        taken = draft.tested & (chances.accepts(draft.width) * bar < mine)
        path, count = descend(draft, taken)
        tested = reached(draft, path, count)
    else:
        path, count, tested, bar = _walked(draft, mine, bar, chances)
    here = path.gather(1, count[:, None])
    lost = tested & (draft.parent == here)  # the last node's children: none was accepted
    r = _left(draft, p[rows, here[:, 0]], lost)
    ratio = torch.where(tested, (mine / bar.clamp(min=_NOTHING)).clamp(max=1), 0).to(p.dtype)
    return Verdict(path, count, chances.draw(r, "next"), tested, ratio)


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


def reached(draft: Draft, path: Tensor, count: Tensor) -> Tensor:
    """[B, T] bool: the nodes that may be compared, which are the children of what was accepted.

    Of the children of one node those behind the accepted one are compared by rules that draw the target's token only.
    """
    index = torch.arange(path.shape[1], device=path.device)
    if draft.parents is None:
        return draft.tested & (torch.arange(draft.width, device=path.device) <= count[:, None] + 1)
    times = torch.zeros_like(draft.tokens).scatter_add_(1, path, (index <= count[:, None]).long())
    return draft.tested & (times > 0).gather(1, draft.parent.clamp(min=0))


class Walk:
    """The way down a tree, every row at its own node."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.index = torch.arange(draft.width, device=draft.tokens.device)
        self.here = torch.zeros_like(draft.tokens[:, 0])  # [B]
        self.count = torch.zeros_like(self.here)  # [B]
        self.alive = torch.ones_like(self.here, dtype=torch.bool)  # [B] no level was without an accepted node
        self.nodes = [self.here]

    @property
    def path(self) -> Tensor:
        """[B, D]"""
        return torch.stack(self.nodes, 1)

    @property
    def children(self) -> Tensor:
        """[B, T] bool: what may be accepted next."""
        return self.draft.tested & (self.draft.parent == self.here[:, None]) & self.alive[:, None]

    def step(self, taken: Tensor) -> Tensor:
        """Goes to the first node of `taken` [B, T]; where there is none the row stays for good. Returns it, [B]."""
        first = torch.where(taken, self.index, self.draft.width).amin(1)
        self.alive = first < self.draft.width
        self.here = torch.where(self.alive, first, self.here)
        self.count = self.count + self.alive
        self.nodes.append(self.here)
        return first


def _walked(draft: Draft, mine: Tensor, bar: Tensor, chances: Chances) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Level by level: path, count, the nodes that were tested, and against what, all [B, T]."""
    walk, tested, against = Walk(draft), torch.zeros_like(draft.tested), wide(bar)
    known = chances.accepts(draft.width) if isinstance(chances, AtOnce) else None
    weight = wide(mine)
    for _ in range(draft.deepest):
        child = walk.children
        before = pad(torch.where(child, weight, 0).cumsum(1)[:, :-1], (1, 0))
        level = (bar - before).clamp(min=0)
        u = asked(draft, chances, child, level, weight) if known is None else known
        first = walk.step(child & (u * level < weight))
        child &= walk.index <= first[:, None]
        tested |= child
        against = torch.where(child, level, against)
    return walk.path, walk.count, tested, against


def asked(draft: Draft, chances: Chances, child: Tensor, level: Tensor, weight: Tensor) -> Tensor:
    """[B, T] uniforms of one level, asked for in order, each only where its test is held."""
    u, going = torch.ones_like(weight), torch.ones_like(child[:, 0])
    for node in range(1, draft.width):
        held = child[:, node] & going
        if held.any():
            u[:, node] = chances.accept(node, held, draft.tokens[:, node])
            going = going & ~(held & (u[:, node] * level[:, node] < weight[:, node]))
    return u


def _left(draft: Draft, r: Tensor, lost: Tensor) -> Tensor:
    """What the rejected nodes `lost` [B, T] leave of the law r [B, V]; a law was rejected in chains only, and alone."""
    gone = torch.zeros_like(r).scatter_add_(1, draft.tokens, lost.to(r.dtype)) > 0
    if draft.q is None:
        return without(r, gone)
    node = lost.long().argmax(1)
    rows, any_lost = torch.arange(len(r), device=r.device), lost.any(1)
    left = residual(r, draft.q[rows, node])
    if draft.point is not None:
        left = torch.where(draft.point[rows, node][:, None], without(r, gone), left)
    return torch.where(any_lost[:, None], left, r)


def _at_token(draft: Draft) -> Tensor:
    """[B, T] float32: what the law that each node was drawn from gives its token; 1 for a point mass."""
    if draft.q is None:
        return torch.ones(draft.tokens.shape, device=draft.tokens.device)
    at: Tensor = draft.q.gather(-1, draft.tokens[..., None])[..., 0]
    return at if draft.point is None else torch.where(draft.point, 1, at)


def _siblings(draft: Draft, p: Tensor, chances: Chances) -> Verdict:
    """`judge` where siblings have laws: level by level, and within one sibling by sibling, over what is left of r."""
    assert draft.q is not None
    rows, bars = torch.arange(len(p), device=p.device), _at_token(draft)
    walk, tested, ratio = Walk(draft), torch.zeros_like(draft.tested), torch.zeros_like(bars)
    most = int(torch.zeros_like(draft.tokens).scatter_add_(1, draft.parent.clamp(min=0), draft.tested.long()).max())
    known = chances.accepts(draft.width) if isinstance(chances, AtOnce) else None
    r = p[:, 0]
    for _ in range(draft.deepest):
        child = walk.children
        place, taken = child.long().cumsum(1), torch.zeros_like(child)
        for turn in range(1, most + 1):
            mark = child & (place == turn)
            held, node = mark.any(1) & ~taken.any(1), mark.long().argmax(1)
            token, bar = draft.tokens[rows, node], bars[rows, node]
            u = _one(chances, node, held, token) if known is None else known[rows, node]
            mine = r[rows, token]
            won = held & (u * bar < mine)
            mark &= held[:, None]
            tested |= mark
            ratio = torch.where(mark, (mine / bar.clamp(min=_NOTHING)).clamp(max=1)[:, None], ratio)
            left = residual(r, draft.q[rows, node])
            if draft.point is not None:
                gone = torch.zeros_like(r, dtype=torch.bool).scatter_(1, token[:, None], True)
                spared = without(r, gone)
                left = torch.where(draft.point[rows, node][:, None], spared / total(spared), left)
            r = torch.where((held & ~won)[:, None], left, r)
            taken |= mark & won[:, None]
        walk.step(taken)
        r = torch.where(walk.alive[:, None], p[rows, walk.here], r)
    return Verdict(walk.path, walk.count, chances.draw(r, "next"), tested, ratio)


def _one(chances: Chances, node: Tensor, held: Tensor, token: Tensor) -> Tensor:
    """[B] uniforms, of another `node` [B] in each row, for sources that know one at a time."""
    u = torch.ones(len(node), dtype=torch.float64, device=node.device)
    for at in set(node[held].tolist()):
        here = held & (node == at)
        u = torch.where(here, chances.accept(at, here, token), u)
    return u
