"""The base of methods that sample an image group after group, each from the tokens known before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError

from ...ops.denoising_paths import Last, denoise, width
from ...ops.unmasking import Guidance, Unmasking, unmasking
from ...spec import Policy
from ..contracts import ContinuousContext, RoundResult


class GroupMethod(Policy):
    """A method with a schedule of groups, given by the fields that it declares; by default one group a round."""

    steps: int
    guidance: Guidance
    last: Last | None  # a spec may leave it open; then `__post_init__` sets it
    head: int | None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpecError(f"steps must be at least 1, got {self.steps}")
        if self.head is not None and self.head < 2:
            raise SpecError(f"head must be at least 2, got {self.head}", hint="none takes the model's own")

    @property
    def last_kind(self) -> Last:
        """Which end of a path is the token."""
        return self.last or "map"

    @property
    def head_steps(self) -> int | None:
        return self.head

    @property
    def needed_model(self) -> str | None:
        return None

    def check_model(self, model: ContinuousModel) -> None:
        """Works with every model."""

    def start(self, context: ContinuousContext) -> Any:
        return None

    def round(self, context: ContinuousContext, state: Any) -> RoundResult:
        self.sample_group(context)
        return RoundResult()

    def schedule(self, context: ContinuousContext) -> Unmasking:
        """The schedule of the model's images: one token a step where it predicts them one by one."""
        tokens = context.images.tokens
        return unmasking(tokens, tokens if context.model.backbone.next_token else min(self.steps, tokens))

    def scale(self, context: ContinuousContext, step: np.ndarray) -> Tensor | None:
        """[n] float32: the guidance of rows at these steps; None without guidance."""
        cfg = context.request.cfg
        if cfg is None:
            return None
        return (
            torch.from_numpy(self.schedule(context).scale(cfg, self.guidance)[step]).float().to(context.images.device)
        )

    def next_group(self, context: ContinuousContext) -> tuple[Tensor, Tensor | None]:
        """The tokens [n, S] that come next in each row, and their guidance."""
        images, schedule = context.images, self.schedule(context)
        step = schedule.step(images.count)
        return images.between(images.count, schedule.bounds[step + 1]), self.scale(context, step)

    def sample_group(self, context: ContinuousContext) -> None:
        """Samples and commits the next group of every row with the target alone."""
        images = context.images
        wanted, scale = self.next_group(context)
        states = context.states(images.known(), wanted, scale)
        images.add_forward()
        with context.watch("head"):
            noise = images.noise(wanted, "token", width(context.head))
            tokens = denoise(context.head, states, noise, temperature=context.request.temperature, last=self.last_kind)
        images.commit(wanted, tokens)
