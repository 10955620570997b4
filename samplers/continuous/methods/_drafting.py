"""A second model of vectors that draws ahead of the target: how it is loaded, and what it drafts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel, Head, States, check_pair

from ...ops.denoising_paths import Last, token, trace, width
from ...ops.denoising_paths import Path as Trail
from ..contracts import Easel
from ._ahead import Group, numbered, raster


class Drafter:
    """The model that drafts, for a request. What rows are live is none of its business."""

    def __init__(self, made: ContinuousModel, easel: Easel) -> None:
        target = easel.model
        check_pair(made, target)
        # The same checkpoint says the same laws: what one call says of them and another must not differ by rounding.
        self.same = made is target or (made.name == target.name and _place(made) == _place(target) is not None)
        self.model = target if self.same else made
        self.head: Head = easel.head if self.same else made.head.respaced(easel.head.steps)


def _place(model: ContinuousModel) -> Path | None:
    return model.path and model.path.resolve()


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """N drafted tokens, row after row in raster order."""

    wanted: Tensor  # [n, S] bool: which they are
    number: Tensor  # [n, S] int64: which group each belongs to, the number of groups where none is drafted
    path: Trail
    states: States  # the drafter's
    latents: Tensor  # [n, S, d]: what is known and what is drafted
    forwards: np.ndarray  # [n] calls that drafted for each row


def draft(easel: Easel, drafter: Drafter, groups: list[Group], last: Last) -> Drafts:
    """Draws the groups one after the other, each from the ones before it, with the noise that the target would use."""
    painting, latents = easel.painting, easel.painting.latents.clone()
    paths: list[Trail] = []
    said: list[States] = []
    for group in groups:
        known = painting.known(group.start)
        states = easel.states(
            known, group.wanted, group.scale, model=drafter.model, name="draft backbone", latents=latents
        )
        with easel.watch("draft head"):
            noise = painting.noise(group.wanted, "token", width(drafter.head))
            path = trace(drafter.head, states, noise, temperature=easel.request.temperature)
        latents[group.wanted] = token(path, drafter.head, last)
        paths.append(path)
        said.append(states)
    rows, places = torch.cat([group.wanted.nonzero() for group in groups]).unbind(1)
    order = raster(rows, places, painting.tokens)
    number = numbered(groups)
    forwards = np.sum([group.stop > group.start for group in groups], axis=0)
    return Drafts(
        number < len(groups), number, _joined_paths(paths, order), _joined(said).take(order), latents, forwards
    )


def _joined(states: list[States]) -> States:
    said = torch.cat([each.said for each in states])
    unsaid = [each.unsaid for each in states if each.unsaid is not None]
    scale = [each.scale for each in states if each.scale is not None]
    return States(said, torch.cat(unsaid), torch.cat(scale)) if unsaid else States(said)


def _joined_paths(paths: list[Trail], order: Tensor) -> Trail:
    points, means, deviations = (
        torch.cat([getattr(path, field.name) for path in paths], 1)[:, order] for field in fields(Trail)
    )
    return Trail(points, means, deviations)
