"""A second model of vectors that draws ahead of the target: how it is loaded, and what it drafts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel, Head, States, check_pair

from ...ops.denoising_paths import DenoisingPath, Last, token, trace, width
from ..contracts import ContinuousContext
from ._ahead import Group, group_indices, raster_order


class Drafter:
    """The model that drafts, for a request. What rows are live is none of its business."""

    def __init__(self, draft_model: ContinuousModel, context: ContinuousContext) -> None:
        target = context.model
        check_pair(draft_model, target)
        # The same checkpoint gives the same distributions: two calls must not differ by rounding.
        self.same = draft_model is target or (
            draft_model.name == target.name
            and _folder(draft_model) == _folder(target) is not None
            and draft_model.weights_version == target.weights_version == 0
        )
        self.model = target if self.same else draft_model
        self.head: Head = context.head if self.same else draft_model.head.respaced(context.head.steps)


def _folder(model: ContinuousModel) -> Path | None:
    return model.path and model.path.resolve()


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """N drafted tokens, row after row in raster order."""

    wanted: Tensor  # [n, S] bool: which they are
    number: Tensor  # [n, S] int64: which group each belongs to, the number of groups where none is drafted
    path: DenoisingPath
    states: States  # the drafter's
    latents: Tensor  # [n, S, d]: what is known and what is drafted
    forwards: np.ndarray  # [n] calls that drafted for each row


def draft(context: ContinuousContext, drafter: Drafter, groups: list[Group], last: Last) -> Drafts:
    """Samples the groups one after the other, each from those before it, with the noise that the target would use."""
    images, latents = context.images, context.images.latents.clone()
    paths: list[DenoisingPath] = []
    all_states: list[States] = []
    for group in groups:
        known = images.known(group.start)
        states = context.states(
            known, group.wanted, group.scale, model=drafter.model, name="draft backbone", latents=latents
        )
        with context.watch("draft head"):
            noise = images.noise(group.wanted, "token", width(drafter.head))
            path = trace(drafter.head, states, noise, temperature=context.request.temperature)
        latents[group.wanted] = token(path, drafter.head, last)
        paths.append(path)
        all_states.append(states)
    rows, index = torch.cat([group.wanted.nonzero() for group in groups]).unbind(1)
    order = raster_order(rows, index, images.tokens)
    number = group_indices(groups)
    forwards = np.sum([group.stop > group.start for group in groups], axis=0)
    return Drafts(
        number < len(groups), number, _join_paths(paths, order), _join_states(all_states).take(order), latents, forwards
    )


def _join_states(states: list[States]) -> States:
    cond = torch.cat([each.cond for each in states])
    uncond = [each.uncond for each in states if each.uncond is not None]
    scale = [each.scale for each in states if each.scale is not None]
    return States(cond, torch.cat(uncond), torch.cat(scale)) if uncond else States(cond)


def _join_paths(paths: list[DenoisingPath], order: Tensor) -> DenoisingPath:
    points, means, deviations = (
        torch.cat([getattr(path, field.name) for path in paths], 1)[:, order] for field in fields(DenoisingPath)
    )
    return DenoisingPath(points, means, deviations)
