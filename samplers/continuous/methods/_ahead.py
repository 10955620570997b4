"""What methods share that look at several groups of a picture at once: the groups, and their states in one call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import States

from ..contracts import Easel
from ._groups import Groups


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Tokens that each row draws together; a row that has no such group any more has an empty one."""

    start: np.ndarray  # [n] int64: tokens known before it
    stop: np.ndarray  # [n] int64: and after it
    wanted: Tensor  # [n, S] bool
    scale: Tensor | None  # [n] float32: its guidance; None where there is none


class Ahead(Groups):
    """`Groups` for a method that sees more than the next one."""

    def ahead(self, easel: Easel, count: int) -> list[Group]:
        """The next `count` groups of every row; fewer where no row has so many."""
        painting, groups = easel.painting, self.groups(easel)
        found: list[Group] = []
        step, last = groups.step(painting.done), len(groups)
        while len(found) < count and (step < last).any():
            after = np.minimum(step + 1, last)
            start, stop = groups.bounds[step], groups.bounds[after]
            scale = self.scale(easel, np.minimum(step, last - 1))
            found.append(Group(start, stop, painting.between(start, stop), scale))
            step = after
        return found


def numbered(groups: list[Group]) -> Tensor:
    """[n, S] int64: which of the groups each token belongs to, len(groups) for those of none."""
    wanted = torch.stack([group.wanted for group in groups])
    number = torch.arange(len(groups), device=wanted.device)[:, None, None]
    return torch.where(wanted, number, len(groups)).amin(0)


def raster(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    """The permutation that puts tokens of these rows and places row after row, in raster order."""
    return (rows * tokens + places).argsort()


def contexts(
    easel: Easel, groups: list[Group], latents: Tensor, usable: Tensor | None = None
) -> tuple[States, np.ndarray]:
    """What the target says of the groups, each from what comes before it in `latents` [n, S, d], in one call.

    The states stand row after row, in raster order. Also how many rows each picture took: one for each group, but one
    for all where the backbone is causal and no token's group has others. `usable` [n, S] is what may be looked at.
    """
    painting = easel.painting
    wanted = torch.stack([group.wanted for group in groups])  # [k, n, S]
    known = torch.stack([painting.known(group.start) for group in groups])
    if usable is not None:
        known = known & usable
    scales = [group.scale for group in groups if group.scale is not None]
    scale = torch.stack(scales) if scales else None  # [k, n]
    if easel.model.backbone.causal and all((group.stop - group.start <= 1).all() for group in groups):
        every = wanted.any(0)
        states = easel.states(known[-1], every, None if scale is None else scale[-1], latents=latents)
        if scale is not None:  # which is each token's own
            own = (wanted * scale[..., None]).sum(0)[every]
            states = replace(states, scale=own)
        return states, np.ones(len(painting), dtype=np.int64)
    asked = wanted.any(-1)
    number, row = asked.nonzero(as_tuple=True)
    states = easel.states(
        known[number, row],
        wanted[number, row],
        None if scale is None else scale[number, row],
        latents=latents[row],
        labels=painting.labels[row],
    )
    at, place = wanted[number, row].nonzero(as_tuple=True)
    return states.take(raster(row[at], place, painting.tokens)), asked.sum(0).cpu().numpy()
