"""Moves a bounded part of the target's law to where the drafter wants it, between neighbours only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..rng import wide
from ..speculative.contracts import Draft
from .neighbourhood import around

_DENSE = 1024  # ids up to which all pairs make one matrix
_GATHERED = 1 << 24  # numbers of a pass, for more ids


def moved(draft: Draft, p: Tensor, nearest: Tensor, delta: float, ratio: float | None) -> tuple[Tensor, Tensor]:
    """A law p~ [B, T, V] in place of each p, and how far it is off in total variation, [B, T], at most `delta`.

    `nearest` [V, K] are the ids that may give to each. The children of a node share its p~, which is made of what is
    known before they are drawn: the law of the first of them, or the point masses before any law. A token takes no more
    than what it lacks under p, nor than (ratio - 1) times what it has; one that p leaves out takes nothing.
    """
    index = torch.arange(draft.width, device=p.device)
    child = torch.where(draft.tested, index, draft.width)
    first = _lowest(draft, child)
    sampled = draft.tested & ~_points(draft)
    ahead = draft.tested & (index < _lowest(draft, torch.where(sampled, index, draft.width)).gather(1, _above(draft)))
    distribution, off = p.clone(), torch.zeros_like(p[..., 0])
    row, node = (first < draft.width).nonzero(as_tuple=True)
    if not len(row) or not nearest.shape[1]:
        return distribution, off
    here, place = wide(p[row, node]), torch.full_like(first, -1)
    place[row, node] = torch.arange(len(row), device=p.device)
    # Point masses: each wants what it has not, and only the others give.
    giver, taker = ahead.nonzero(as_tuple=True)
    wanted = torch.zeros_like(here, dtype=torch.bool)
    wanted[place[giver, _above(draft)[giver, taker]], draft.ids[giver, taker]] = True
    room = torch.where(wanted, 1 - here, 0)
    spare = here.masked_fill(wanted, 0)
    if draft.q is not None:
        child, distribution_of = first[row, node], wide(draft.q[row, first[row, node]])
        certain = _points(draft)[row, child][:, None]
        room = torch.where(certain, room, (distribution_of - here).clamp(min=0))
        spare = torch.where(certain, spare, (here - distribution_of).clamp(min=0))
    room = room.masked_fill(here <= 0, 0)
    if ratio is not None:
        room = torch.minimum(room, (ratio - 1) * here)
    made, mass = _transport(room, spare, nearest, delta)
    distribution[row, node] = (here + made).clamp(min=0).to(p.dtype)
    off[row, node] = mass.to(p.dtype)
    return distribution, off


def _transport(room: Tensor, spare: Tensor, nearest: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """What each token gains [N, V], and the mass moved [N].

    Every token offers `spare` [N, V] to those it is a neighbour of, in proportion to their `room` [N, V]; none takes
    more than its room, and where more than `delta` would move, all take less alike.
    """
    takers = max(int((room > 0).sum(1).max()), 1)
    dense = nearest.shape[0] <= _DENSE
    count = len(room) if dense else max(_GATHERED // (takers * nearest.shape[1]), 1)
    gain, mass = torch.zeros_like(room), torch.zeros_like(room[:, 0])
    for start in range(0, len(room), count):
        part = slice(start, start + count)
        wish = room[part]
        to_givers, to_takers = _matrix(wish, nearest) if dense else _gathers(wish, nearest, takers)
        asked = to_givers(wish)
        share = torch.where(asked > 0, spare[part] / asked, 0)  # of each wish a token could grant
        granted = to_takers(share)
        kept = wish * torch.where(granted > 1, 1 / granted, 1)
        taken = kept * granted
        total = taken.sum(1, keepdim=True)
        scale = torch.where(total > delta, delta / total, 1)
        gain[part] = scale * (taken - share * to_givers(kept))
        mass[part] = (scale * total)[:, 0]
    return gain, mass


Sums = Callable[[Tensor], Tensor]  # [N, V] -> [N, V]


def _matrix(wish: Tensor, nearest: Tensor) -> tuple[Sums, Sums]:
    """For each token the sum over those it is a neighbour of, and over its neighbours."""
    beside = wish.new_zeros(len(nearest), len(nearest)).scatter_(1, nearest.long(), 1)
    return lambda values: values @ beside, lambda values: values @ beside.T


def _gathers(wish: Tensor, nearest: Tensor, takers: int) -> tuple[Sums, Sums]:
    """The same where a matrix of all pairs is too large, over the `takers` tokens alone that have a `wish` [N, V]."""
    ids = wish.topk(takers).indices
    near = nearest[ids].long()  # [N, takers, K]
    places = near.flatten(1)

    def to_givers(values: Tensor) -> Tensor:
        each = values.gather(1, ids)[..., None].expand_as(near)
        return torch.zeros_like(values).scatter_add_(1, places, each.flatten(1))

    def to_takers(values: Tensor) -> Tensor:
        return torch.zeros_like(values).scatter_(1, ids, around(values, ids, nearest, near))

    return to_givers, to_takers


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
