"""The two rules that every acceptance is made of: following the target's own choice, and the exact test."""

from __future__ import annotations

import torch
from torch import Tensor

from pardec.samplers.verifying import Chances, Draft, Verdict

_NOTHING = 1e-12  # a residual lighter than this is rounding: p and q are the same, and p is drawn from


def follow(draft: Draft, pick: Tensor) -> Verdict:
    """From node 0 on, descends to the child that holds `pick` [B, T] of its parent, as long as there is one.

    Greedy decoding with the argmax as the pick; an exact sample with a draw from each node's law.
    """
    index = torch.arange(draft.width, device=pick.device)
    if draft.parents is None:
        same = draft.tokens[:, 1:] == pick[:, :-1]
        same = torch.nn.functional.pad(same, (1, 0)) & draft.tested
        path, count = index.expand_as(draft.tokens), same[:, 1:].long().cumprod(1).sum(1)
    else:
        same = draft.tested & (draft.tokens == pick.gather(1, draft.parent.clamp(min=0)))
        here = torch.zeros_like(pick[:, 0])
        nodes, count, alive = [here], torch.zeros_like(here), torch.ones_like(here, dtype=torch.bool)
        for _ in range(draft.deepest):
            child = same & (draft.parent == here[:, None]) & alive[:, None]
            # The first of equal siblings; what the others lead to is lost, so drafters merge them.
            first = torch.where(child, index, draft.width).amin(1)
            alive = first < draft.width
            here = torch.where(alive, first, here)
            count = count + alive
            nodes.append(here)
        path = torch.stack(nodes, 1)
    end = path.gather(1, count[:, None])
    return Verdict(path, count, pick.gather(1, end)[:, 0], _reached(draft, path, count), same.float())


def judge(draft: Draft, p: Tensor, chances: Chances) -> Verdict:
    """The exact test of every node in order, and the next token from what is left of the law.

        accepted  iff  u q[x] < r[x]         rejected: r <- norm([r - q]+), for a point mass r without x

    r is the law of the current node, `p` [B, T, V] float32. With q the law of each node given its earlier siblings
    this is speculative sampling for chains, and recursive rejection sampling for siblings with and without
    replacement (arXiv:2211.17192, 2302.01318, 2305.09781).
    """
    batch, width = draft.tokens.shape
    rows = torch.arange(batch, device=p.device)
    here, r = torch.zeros_like(draft.tokens[:, 0]), p[:, 0]
    path, count = torch.zeros_like(draft.tokens[:, : draft.deepest + 1]), torch.zeros_like(here)
    reached, ratios = torch.zeros_like(draft.tested), torch.zeros(draft.tokens.shape, device=p.device)
    for node in range(1, width):
        token = draft.tokens[:, node]
        held = draft.tested[:, node] & (draft.parent[:, node] == here)
        q, at_token = _law(draft, node, token, r.shape[-1])
        mine = r[rows, token]
        u = chances.accept(node, held, token)
        taken = held & (u * at_token < mine)
        reached[:, node] = held
        ratios[:, node] = torch.where(held, (mine / at_token).clamp(max=1), 0)
        lost = held & ~taken
        r = torch.where(lost[:, None], residual(r, q), r)
        r = torch.where(taken[:, None], p[:, node], r)
        here = torch.where(taken, node, here)
        count = count + taken
        path[rows, count] = here
    return Verdict(path, count, chances.draw(r, "next"), reached, ratios)


def residual(r: Tensor, q: Tensor) -> Tensor:
    """norm([r - q]+) over the last dimension; r itself where nothing but rounding is left."""
    left = (r - q).clamp(min=0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > _NOTHING, left / mass.clamp(min=_NOTHING), r)


def _law(draft: Draft, node: int, token: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """The law [B, V] that `node` was drawn from, and its value at `token` [B]."""
    alone = torch.zeros(len(token), vocab, device=token.device).scatter_(1, token[:, None], 1.0)
    if draft.q is None:
        return alone, torch.ones(len(token), device=token.device)
    q = draft.q[:, node]
    if draft.point is not None:
        q = torch.where(draft.point[:, node, None], alone, q)
    return q, q.gather(1, token[:, None])[:, 0]


def _reached(draft: Draft, path: Tensor, count: Tensor) -> Tensor:
    """[B, T] bool: the nodes that were compared, which are the children of what was accepted."""
    index = torch.arange(path.shape[1], device=path.device)
    times = torch.zeros_like(draft.tokens).scatter_add_(1, path, (index <= count[:, None]).long())
    return draft.tested & (times > 0).gather(1, draft.parent.clamp(min=0))
