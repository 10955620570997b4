"""Moves a bounded part of the target's probability towards the drafter's, between neighbouring tokens only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...ops.neighbourhood import neighbour_sums
from ...rng import wide
from ..contracts import Draft

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
