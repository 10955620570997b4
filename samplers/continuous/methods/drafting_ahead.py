"""Shared by methods that sample several groups of an image at once: the groups, and their states in one call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import States

from ...host_transfer import download
from ..contracts import ContinuousContext
from .groups import GroupMethod


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The tokens that each row samples together; empty for a row without a further group."""

    start: np.ndarray  # [n] int64: tokens known before it
    stop: np.ndarray  # [n] int64: tokens known after it
    wanted: Tensor  # [n, S] bool
    scale: Tensor | None  # [n] float32: its guidance scale; None without guidance
    step: np.ndarray  # [n] int64: its step of the schedule; the last step if the group is empty


class LookaheadMethod(GroupMethod):
    """A method that samples more than the next group in a round."""

    def next_groups(self, context: ContinuousContext, count: int) -> list[Group]:
        """The next `count` groups of every row; fewer if no row has that many."""
        images, schedule = context.images, self.schedule(context)
        groups: list[Group] = []
        step, last = schedule.step(images.count), len(schedule)
        while len(groups) < count and (step < last).any():
            after = np.minimum(step + 1, last)
            start, stop = schedule.bounds[step], schedule.bounds[after]
            at = np.minimum(step, last - 1)
            groups.append(Group(start, stop, images.between(start, stop), self.scale(context, at), at))
            step = after
        return groups


def group_indices(groups: list[Group]) -> Tensor:
    """[n, S] int64: the group of each token, len(groups) for tokens in none."""
    wanted = torch.stack([group.wanted for group in groups])
    number = torch.arange(len(groups), device=wanted.device)[:, None, None]
    return torch.where(wanted, number, len(groups)).amin(0)


def raster_order(rows: Tensor, index: Tensor, tokens: int) -> Tensor:
    """The permutation that puts the tokens `index` of these rows row after row, in raster order."""
    return (rows * tokens + index).argsort()


def group_states(
    context: ContinuousContext, groups: list[Group], latents: Tensor, usable: Tensor | None = None
) -> tuple[States, np.ndarray]:
    """The target's states of the groups from one call, each given the earlier tokens in `latents` [n, S, d].

    The states come row after row, in raster order. Also returns how many rows each image took: one for each group, but
    one for all if the backbone is causal and every group is a single token. `usable` [n, S] is what may be attended to.
    """
    images = context.images
    wanted = torch.stack([group.wanted for group in groups])  # [k, n, S]
    known = torch.stack([images.known(group.start) for group in groups])
    if usable is not None:
        known = known & usable
    scales = [group.scale for group in groups if group.scale is not None]
    scale = torch.stack(scales) if scales else None  # [k, n]
    if context.model.backbone.causal and all((group.stop - group.start <= 1).all() for group in groups):
        union = wanted.any(0)
        states = context.states(known[-1], union, None if scale is None else scale[-1], latents=latents)
        if scale is not None:  # each token has its own
            states = replace(states, scale=(wanted * scale[..., None]).sum(0)[union])
        return states, np.ones(len(images), dtype=np.int64)
    nonempty = wanted.any(-1)
    number, row = nonempty.nonzero(as_tuple=True)
    states = context.states(
        known[number, row],
        wanted[number, row],
        None if scale is None else scale[number, row],
        latents=latents[row],
        labels=images.labels[row],
    )
    at, index = wanted[number, row].nonzero(as_tuple=True)
    return states[raster_order(row[at], index, images.tokens)], download(nonempty.sum(0))
