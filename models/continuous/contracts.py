"""The contract of models whose tokens are vectors of real numbers: a backbone's states, and a head that is their law.

A token x of d numbers is drawn by denoising: x_T is standard normal, and each of T transitions draws x_(t-1) from a
Gaussian that the head says from x_t and the state of the token. Transitions count down: index T-1 first, index 0 last.
Letters: R rows, S tokens of a picture, d numbers of a token, N tokens asked for, over all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..errors import ModelError

if TYPE_CHECKING:
    from ..images.contracts import Pictures


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """What a backbone says of N tokens: what their laws depend on. Opaque but to the head of the same model."""

    said: Tensor  # [N, E]
    unsaid: Tensor | None = None  # [N, E] the same where no condition is given; None without guidance
    scale: Tensor | None = None  # [N] float32, with `unsaid`: how strongly each is guided

    def __len__(self) -> int:
        return len(self.said)

    def take(self, which: Tensor) -> States:
        """The states of these tokens only: indices or a mask."""
        if self.unsaid is None or self.scale is None:
            return States(self.said[which])
        return States(self.said[which], self.unsaid[which], self.scale[which])


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """The law of one transition: independent normal numbers."""

    mean: Tensor  # [N, d] float32
    log_deviation: Tensor  # [N, d] float32, natural logarithm of the standard deviation

    @property
    def deviation(self) -> Tensor:
        """[N, d] float32."""
        return self.log_deviation.exp()


class Head(Protocol):
    """Says the law of each transition."""

    @property
    def size(self) -> int:
        """Numbers of a token."""
        ...

    @property
    def steps(self) -> int:
        """Transitions T."""
        ...

    @property
    def signal(self) -> Tensor:
        """[T] float64: what a point after the transition of index t is scaled by, before: sqrt(alpha_bar_t).

        x_1, the point that the transition of index 0 starts from, is `signal[0]` times a token, and noise.
        """
        ...

    def ready(self, states: States) -> States:
        """The same states, for a walk through all transitions: what these share may be made once."""
        ...

    def distribution(self, x: Tensor, index: int | Tensor, states: States) -> Gaussian:
        """The law of x_(index) given the point before it, `x` [N, d] float32; `index` is one for all, or [N] int64."""
        ...

    def respaced(self, steps: int) -> Head:
        """The same head over other transitions. Raises ModelError for more than it was trained with."""
        ...


class Backbone(Protocol):
    """Says states of tokens from the tokens that are known."""

    @property
    def tokens(self) -> int:
        """Tokens of a picture, S."""
        ...

    @property
    def causal(self) -> bool:
        """Whether a token's state depends only on those before it in raster order, so that one row asks for many."""
        ...

    def states(
        self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, scale: Tensor | None = None
    ) -> States:
        """States of the tokens that `wanted` marks, row after row, in raster order.

        Args:
            latents: [R, S, d] float32; anything where a token is not known.
            known: [R, S] bool. What is not known is not looked at.
            labels: [R] int64.
            wanted: [R, S] bool.
            scale: [R] float32, the guidance of each row; None is no guidance, and half of the work.
        """
        ...

    def parameters(self) -> Iterable[Tensor]: ...


@dataclass(slots=True, eq=False)
class ContinuousModel:
    """A checkpoint ready to run. Made by `pardec.models.load.load`."""

    backbone: Backbone
    head: Head
    imaging: Pictures
    config: dict[str, Any]  # as published, or read off the tensors
    name: str
    path: Path | None
    family: str
    device: torch.device
    dtype: torch.dtype
    parameters: int  # how many numbers the checkpoint has
    choice: str = field(default="", repr=False)  # why this device and dtype

    def describe(self) -> str:
        """Where and how the model runs, and why, in one line."""
        return f"{self.name}: {self.family}, {self.choice}" if self.choice else f"{self.name}: {self.family}"


def check_pair(draft: ContinuousModel, target: ContinuousModel) -> None:
    """Raises ModelError unless the two draw the same tokens of the same classes."""
    for what, ours, theirs in (
        ("tokens a picture", target.backbone.tokens, draft.backbone.tokens),
        ("numbers a token", target.head.size, draft.head.size),
        ("classes", target.imaging.classes, draft.imaging.classes),
        ("steps of the head", target.head.steps, draft.head.steps),
    ):
        if ours != theirs:
            raise ModelError(
                f"{draft.name} cannot draft for {target.name}: it has {theirs} {what}, not {ours}",
                "draft with a smaller model of the same tokens",
            )


def stated(config: Mapping[str, Any], *names: str) -> list[int]:
    """Whole numbers of a configuration by name. Raises ModelError for one that is missing or is none."""
    found = []
    for name in names:
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"the configuration says {name}={value!r}, and a whole number is needed")
        found.append(value)
    return found
