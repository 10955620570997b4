"""What every method has that draws a picture group after group, each from what is known before it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError

from ...ops.denoising_paths import Last, walk, width
from ...ops.unmasking import Guidance, Unmasking, unmasking
from ...spec import Policy
from ..contracts import Easel


class Groups(Policy):
    """The schedule of a method, by the fields that it declares."""

    steps: int
    guidance: Guidance
    last: Last | None  # settled by `__post_init__` where a spec may leave it open
    head: int | None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpecError(f"steps must be at least 1, got {self.steps}")
        if self.head is not None and self.head < 2:
            raise SpecError(f"head must be at least 2, got {self.head}", hint="none takes the model's own")

    @property
    def ending(self) -> Last:
        """What a token is."""
        return self.last or "map"

    @property
    def head_steps(self) -> int | None:
        return self.head

    @property
    def needed_model(self) -> str | None:
        return None

    def check_model(self, model: ContinuousModel) -> None:
        """Nothing is refused."""

    def groups(self, easel: Easel) -> Unmasking:
        """The schedule of the model's pictures."""
        tokens = easel.painting.tokens
        return unmasking(tokens, min(self.steps, tokens))

    def scale(self, easel: Easel, step: np.ndarray) -> Tensor | None:
        """[n] float32: the guidance of rows at these steps; None where there is none."""
        cfg = easel.request.cfg
        if cfg is None:
            return None
        return torch.from_numpy(self.groups(easel).scale(cfg, self.guidance)[step]).float().to(easel.painting.device)

    def next_group(self, easel: Easel) -> tuple[Tensor, Tensor | None]:
        """The tokens [n, S] that come next in each row, and how they are guided."""
        painting, groups = easel.painting, self.groups(easel)
        step = groups.step(painting.done)
        return painting.between(painting.done, groups.bounds[step + 1]), self.scale(easel, step)

    def draw(self, easel: Easel) -> np.ndarray:
        """Draws and commits the next group of every row with the target alone; [n] how many tokens each has got."""
        painting = easel.painting
        wanted, scale = self.next_group(easel)
        states = easel.states(painting.known(), wanted, scale)
        painting.count()
        with easel.watch("head"):
            noise = painting.noise(wanted, "token", width(easel.head))
            made = walk(easel.head, states, noise, temperature=easel.request.temperature, last=self.ending)
        before = painting.done
        painting.commit(wanted, made)
        gained: np.ndarray = painting.done - before
        return gained
