"""The contracts of the continuous loop, which samples images whose tokens are vectors: request, context and method.

Each row samples its tokens in an order of its own, some at a time, at its own pace. As in the other loops, methods are
immutable, and what one remembers over a request is the state that its `start` returns, rows first (`take_rows`).
Letters: n live rows, S tokens of an image, d numbers of a token, T transitions of the head, N tokens sampled together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import Backbone, ContinuousModel, Head, States

from ..spec import Spec
from ..spec_values import build_single
from ..stopwatch import Stopwatch
from ..trace import Fed
from .state import ImageRequest as ImageRequest
from .state import ImageState


@dataclass(frozen=True, eq=False)
class ContinuousContext:
    """The model, images and caches that a method uses during a request."""

    model: ContinuousModel
    head: Head  # the model's head, with as many transitions as the method chose
    request: ImageRequest
    images: ImageState
    watch: Stopwatch
    backbones: dict[int, Backbone] = field(default_factory=dict)  # this request's, by `id(model.backbone)`
    _heads: dict[int, Head] = field(default_factory=dict)

    def backbone(self, model: ContinuousModel) -> Backbone:
        """A model's backbone for this request, with its caches."""
        own, request = self.backbones.get(id(model.backbone)), self.request
        if own is None:
            own = model.backbone.start(request.conditions, size=request.size, guided=request.cfg is not None)
            self.backbones[id(model.backbone)] = own
        return own

    def head_of(self, steps: int) -> Head:
        """The model's head with this number of transitions."""
        if steps == self.head.steps:
            return self.head
        if steps not in self._heads:
            self._heads[steps] = self.model.head.respaced(steps)
        return self._heads[steps]

    def states(
        self,
        known: Tensor,
        wanted: Tensor,
        scale: Tensor | None,
        *,
        model: ContinuousModel | None = None,
        name: str = "backbone",
        latents: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> States:
        """Computes the states of a model's backbone, by default the target's. Arguments as for `Backbone.states`.

        `latents` and `labels` default to the live rows' in `images`; a caller may pass other rows.
        """
        images, model = self.images, model or self.model
        images.models[model.name] = model
        with self.watch(name):
            states = self.backbone(model).states(
                images.latents if latents is None else latents,
                known,
                images.labels if labels is None else labels,
                wanted,
                scale,
            )
        for part in (states.cond, states.uncond):
            if part is not None:
                images.checksum = images.checksum + part.sum(dtype=torch.float32)
        # Tests of densities may fail on NaN; on other devices `commit` checks, without another transfer.
        if images.device.type == "cpu" and not math.isfinite(images.checksum):
            raise images.failure("states")
        return states


@dataclass(frozen=True, slots=True, eq=False)
class RoundResult:
    """The counts of one round of a method, one number per live row, for results."""

    drafted: np.ndarray | None = None  # [n] tokens that were tested
    accepted: np.ndarray | None = None  # [n] tested tokens that were accepted
    draft_forwards: int | np.ndarray = 0  # calls of a draft model's backbone: one number for all rows, or [n]
    deviation: np.ndarray | None = None  # [n] total variation that a relaxed rule adds
    contexts: np.ndarray | None = None  # [n] rows in the target's backbone call, no guidance copies; None: 1 each
    copies: int | None = None  # how often guidance counts each of these rows; None: 2, or 1 without guidance
    computed: Sequence[Fed] | None = None  # [n] tokens that passed all layers of the backbone; None: all fed


class Method(Protocol):
    """Samples vectors, round by round. It may also have an attribute `exact`."""

    @property
    def head_steps(self) -> int | None:
        """The number of the head's transitions; None: the model's default."""
        ...

    @property
    def needed_model(self) -> str | None:
        """The checkpoint that drafts, which the caller loads and hands in as `PictureRequest.draft_model`."""
        ...

    def check_model(self, model: ContinuousModel) -> None:
        """Raises for a model that it does not work with, before the draft model's weights are read."""
        ...

    def start(self, context: ContinuousContext) -> Any:
        """The method's state for this request; rows are dimension 0 of its tensors and arrays."""
        ...

    def round(self, context: ContinuousContext, state: Any) -> RoundResult:
        """Calls the backbone at least once (`images.add_forward`) and commits at least one token of every live row."""
        ...


@dataclass(frozen=True)
class ContinuousSampler:
    """A resolved spec of the continuous loop."""

    spec: Spec
    exact: str
    method: Method

    @cached_property
    def stages(self) -> tuple[Any, ...]:
        """All stages."""
        return (self.method,)


def build(spec: Spec, *, sampling: bool = False) -> ContinuousSampler:
    """Builds the sampler with the one method of the spec. Raises SpecError if the spec names several."""
    return ContinuousSampler(*build_single(spec, "continuous", "a sampler of vectors"))
