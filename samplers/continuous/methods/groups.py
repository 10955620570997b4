"""The base of methods that sample an image group after group, each from the tokens known before it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel, States
from pardec.models.errors import SpecError

from ...host_transfer import download, upload
from ...ops.denoising_paths import Last, denoise, width
from ...ops.unmasking import Guidance, Unmasking, unmasking, unmasking_in_halves
from ...spec import Policy
from ..contracts import ContinuousContext, RoundResult


class GroupMethod(Policy):
    """A method with a schedule of groups, given by the fields that it declares; by default one group per round."""

    steps: int
    guidance: Guidance
    last: Last | None  # a spec may leave it open; then `__post_init__` sets it
    head: int | None
    head_to: int | None = None  # transitions at the last step of the schedule; None: `head` throughout
    head_every: int = 1  # the head's blocks compute every `head_every` transitions: see `Head.ready`
    order: str = "random"  # order of the tokens; "checker": every second one of the grid comes at the last step

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpecError(f"steps must be at least 1, got {self.steps}")
        if self.head is not None and self.head < 2:
            raise SpecError(f"head must be at least 2, got {self.head}", hint="head=none takes the model's own number")
        if self.head_to is not None and not 2 <= self.head_to <= (self.head or self.head_to):
            raise SpecError(
                f"head_to must lie between 2 and head={self.head}, got {self.head_to}",
                hint="transitions become fewer from step to step",
            )

    @property
    def last_kind(self) -> Last:
        """How a token is taken from its path's last transition."""
        return self.last or "map"

    @property
    def head_steps(self) -> int | None:
        return self.head

    @property
    def needed_model(self) -> str | None:
        return None

    def check_model(self, model: ContinuousModel) -> None:
        """Raises SpecError for a model without such an order, or whose head has too few transitions for `head_to`."""
        if self.order != "random" and model.backbone.causal:
            raise SpecError(
                f"order={self.order} is not possible, {model.name} samples in raster order", hint="leave order out"
            )
        if self.head is None and self.head_to is not None and self.head_to > model.head.steps:
            raise SpecError(
                f"head_to={self.head_to} is more than the {model.head.steps} transitions of {model.name}",
                hint="set head as well, or a smaller head_to",
            )

    def start(self, context: ContinuousContext) -> Any:
        """Sets the order of the tokens; methods with a state return it."""
        if self.order == "checker":
            images, (_, columns) = context.images, context.model.imaging.layout.grid
            index = torch.arange(images.tokens, device=images.device)
            odd = (index // columns + index % columns) % 2
            images.rank = (images.rank + odd * images.tokens).argsort(1).argsort(1)
        return None

    def round(self, context: ContinuousContext, state: Any) -> RoundResult:
        self.sample_group(context)
        return RoundResult()

    def schedule(self, context: ContinuousContext) -> Unmasking:
        """The schedule for the model's images: one token per step for models that predict tokens one by one."""
        tokens = context.images.tokens
        steps = tokens if context.model.backbone.next_token else min(self.steps, tokens)
        return (unmasking_in_halves if self.order == "checker" else unmasking)(tokens, steps)

    def scale(self, context: ContinuousContext, step: np.ndarray) -> Tensor | None:
        """[n] float32: the guidance of rows at these steps; None without guidance."""
        cfg = context.request.cfg
        if cfg is None:
            return None
        scale = self.schedule(context).scale(cfg, self.guidance)[step]
        return upload(scale.astype(np.float32), context.images.device)

    def next_group(self, context: ContinuousContext) -> tuple[Tensor, Tensor | None]:
        """The next tokens of each row, [n, S] bool, and their guidance."""
        images, schedule = context.images, self.schedule(context)
        step = schedule.step(images.count)
        return images.between(images.count, schedule.bounds[step + 1]), self.scale(context, step)

    def sample_tokens(self, context: ContinuousContext, states: States, wanted: Tensor, step: np.ndarray) -> Tensor:
        """[N, d]: the tokens where `wanted` [n, S] is True, row after row, each at `step` [N] of the schedule."""
        noise = context.images.noise(wanted, "token", width(context.head))
        temperature = context.request.temperature
        sample = partial(denoise, temperature=temperature, last=self.last_kind, every=self.head_every)
        if self.head_to is None:
            return sample(context.head, states, noise)
        transitions = self.schedule(context).transitions(context.head.steps, self.head_to)[step]
        tokens = noise.new_empty(len(noise), context.head.size)
        for count in np.unique(transitions).tolist():  # rows at one step, and groups of a window, share a head
            which, head = upload(transitions == count, noise.device), context.head_of(count)
            tokens[which] = sample(head, states[which], noise[which, : width(head)])
        return tokens

    def sample_group(self, context: ContinuousContext) -> None:
        """Samples and commits the next group of every row with the target alone."""
        images = context.images
        wanted, scale = self.next_group(context)
        states = context.states(images.known(), wanted, scale)
        images.add_forward()
        with context.watch("head"):
            step = self.schedule(context).step(images.count).repeat(download(wanted.sum(1)))
            tokens = self.sample_tokens(context, states, wanted, step)
        images.commit(wanted, tokens)
