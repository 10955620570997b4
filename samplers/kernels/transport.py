"""Moves a bounded part of the target's law to where the drafter wants it, between neighbours only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.samplers.rng import wide
from pardec.samplers.verifying import Draft

_GATHERED = 1 << 24  # numbers of a pass


def moved(draft: Draft, p: Tensor, nearest: Tensor, delta: float, ratio: float | None) -> tuple[Tensor, Tensor]:
    """A law p~ [B, T, V] in place of each p, and how far it is off in total variation, [B, T], at most `delta`.

    `nearest` [V, K] are the ids that may give to each. The children of a node share its p~, which is made of what is
    known before they are drawn: the law of the first of them, or the point masses before any law. A token takes no more
    than what it lacks under p, nor than (ratio - 1) times what it has; one that p leaves out takes nothing.
    """
    index = torch.arange(draft.width, device=p.device)
    child = torch.where(draft.tested, index, draft.width)
    first = _lowest(draft, child)
    drawn = draft.tested & ~_points(draft)
    ahead = draft.tested & (index < _lowest(draft, torch.where(drawn, index, draft.width)).gather(1, _above(draft)))
    law, off = p.clone(), torch.zeros_like(p[..., 0])
    row, node = (first < draft.width).nonzero(as_tuple=True)
    if not len(row) or not nearest.shape[1]:
        return law, off
    here, place = wide(p[row, node]), torch.full_like(first, -1)
    place[row, node] = torch.arange(len(row), device=p.device)
    # Point masses: each wants what it has not, and only the others give.
    giver, taker = ahead.nonzero(as_tuple=True)
    wanted = torch.zeros_like(here, dtype=torch.bool)
    wanted[place[giver, _above(draft)[giver, taker]], draft.tokens[giver, taker]] = True
    room = torch.where(wanted, 1 - here, 0)
    spare = here.masked_fill(wanted, 0)
    if draft.q is not None:
        child, law_of = first[row, node], wide(draft.q[row, first[row, node]])
        certain = _points(draft)[row, child][:, None]
        room = torch.where(certain, room, (law_of - here).clamp(min=0))
        spare = torch.where(certain, spare, (here - law_of).clamp(min=0))
    room = room.masked_fill(here <= 0, 0)
    if ratio is not None:
        room = torch.minimum(room, (ratio - 1) * here)
    made, mass = _transport(room, spare, nearest, delta)
    law[row, node] = (here + made).clamp(min=0).to(p.dtype)
    off[row, node] = mass.to(p.dtype)
    return law, off


def _transport(room: Tensor, spare: Tensor, nearest: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """What each token gains [N, V], and the mass moved [N].

    Every token offers `spare` [N, V] to those it is a neighbour of, in proportion to their `room` [N, V]; none takes
    more than its room, and where more than `delta` would move, all take less alike.
    """
    takers = max(int((room > 0).sum(1).max()), 1)
    count = max(_GATHERED // (takers * nearest.shape[1]), 1)
    gain, mass = torch.zeros_like(room), torch.zeros_like(room[:, 0])
    for start in range(0, len(room), count):
        part = slice(start, start + count)
        wish, ids = room[part].topk(takers)
        near = nearest[ids].flatten(1).long()  # [n, takers * K]
        wide_wish = wish[..., None].expand(-1, -1, nearest.shape[1])
        asked = torch.zeros_like(room[part]).scatter_add_(1, near, wide_wish.flatten(1))
        share = torch.where(asked > 0, spare[part] / asked, 0)  # of each wish a token could grant
        granted = share.gather(1, near).view_as(wide_wish).sum(-1)
        kept = torch.where(granted > 1, 1 / granted, 1)
        taken = wish * granted * kept
        total = taken.sum(1, keepdim=True)
        scale = torch.where(total > delta, delta / total, 1)
        paid = torch.zeros_like(asked).scatter_add_(1, near, (wish * kept)[..., None].expand_as(wide_wish).flatten(1))
        gain[part] = (-scale * share * paid).scatter_add_(1, ids, scale * taken)
        mass[part] = (scale * total)[:, 0]
    return gain, mass


def _points(draft: Draft) -> Tensor:
    """[B, T] bool: the nodes that are point masses."""
    if draft.q is None:
        return torch.ones_like(draft.tested)
    return torch.zeros_like(draft.tested) if draft.point is None else draft.point


def _above(draft: Draft) -> Tensor:
    return draft.parent.clamp(min=0)


def _lowest(draft: Draft, value: Tensor) -> Tensor:
    """[B, T]: the lowest `value` [B, T] among each node's children; T where there are none."""
    if draft.parents is None:
        return pad(value[:, 1:], (0, 1), value=draft.width)
    none = torch.full_like(value, draft.width)
    return none.scatter_reduce(1, _above(draft), torch.where(draft.tested, value, draft.width), "amin")
