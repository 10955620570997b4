"""The contract of models whose tokens are vectors: a backbone gives states, and a head the tokens' distributions.

A token x of d numbers is sampled by denoising: x_T is standard normal, and each of T transitions gives x_(t-1) by what
the head computes from x_t and the token's state: a sample of a Gaussian, or its mean where it has no deviation.
Transitions count down: index T-1 first, index 0 last.
Letters: R rows, S tokens of an image, d numbers of a token, N requested tokens, over all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ..errors import ModelError
from ..images.contracts import Condition, ImageModel


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """A backbone's states of N tokens, for the head of the same model; opaque to everything else."""

    cond: Tensor  # [N, E]
    uncond: Tensor | None = None  # [N, E] the same without the condition; None without guidance
    scale: Tensor | None = None  # [N] float32, with `uncond`: how strongly each is guided

    def __len__(self) -> int:
        return len(self.cond)

    def __getitem__(self, which: Tensor) -> States:
        """The states of these tokens only: indices or a mask."""
        if self.uncond is None or self.scale is None:
            return States(self.cond[which])
        return States(self.cond[which], self.uncond[which], self.scale[which])


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """The distribution of one transition: independent normal numbers."""

    mean: Tensor  # [N, d] float32
    log_deviation: Tensor  # [N, d] float32, natural logarithm of the standard deviation

    @property
    def deviation(self) -> Tensor:
        """[N, d] float32."""
        return self.log_deviation.exp()


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """The tokens that a call fed to a backbone with a cache; guidance feeds twice as many."""

    spans: np.ndarray  # [R, 2] int64: start and stop of the tokens that the last call fed to each row
    prompts: np.ndarray  # [B] int64: tokens of the prompts of each condition, guidance included


@dataclass(frozen=True, slots=True)
class Reuse:
    """The results that a call of a `ReusingBackbone` reuses from earlier calls; by default none."""

    uncond: bool = False  # unconditional states are the conditional ones plus the difference in the last call with both
    share: float | None = None  # share of the decoder's positions that pass all its layers; None: all, with new inputs
    margin: int = 0  # positions computed, at least, in addition to the wanted and newly known tokens


class Head(Protocol):
    """Computes the distribution of each transition."""

    @property
    def size(self) -> int:
        """The number of values in a token."""
        ...

    @property
    def steps(self) -> int:
        """The number of transitions, T."""
        ...

    @property
    def stochastic(self) -> bool:
        """Whether transitions have noise, and so densities; else log deviations are -inf, and only x_T is random."""
        ...

    @property
    def signal(self) -> Tensor:
        """[T] float64: sqrt(alpha_bar_t), the factor of the clean token in the point before transition t.

        x_1, the point that the transition of index 0 starts from, is `signal[0]` times a token, and noise.
        """
        ...

    def ready(self, states: States, every: int = 1) -> States:
        """The states, prepared for one walk through all transitions: shared values may be computed once.

        With `every` > 1 only the first tenth of them, and those whose index is a multiple of it, are computed in full;
        the others take from the last one that was what the blocks add, and what the condition changes.
        """
        ...

    def distribution(self, x: Tensor, index: int | Tensor, states: States) -> Gaussian:
        """The distribution of x_(index) given `x` [N, d] float32, the point before it; `index` is one, or [N] int64."""
        ...

    def respaced(self, steps: int) -> Head:
        """The same head over other transitions. Raises ModelError for more steps than it was trained with."""
        ...


class Backbone(Protocol):
    """Computes states of tokens from the known tokens."""

    @property
    def tokens(self) -> int:
        """The number of tokens of an image, S."""
        ...

    @property
    def causal(self) -> bool:
        """Whether a token's state depends only on those before it in raster order, so that one row can serve many."""
        ...

    @property
    def next_token(self) -> bool:
        """Whether tokens are predicted one by one: a state needs every token before it, and reads unknown ones as 0.

        The others, which are trained on any known tokens, sample several from one state of what is known.
        """
        ...

    @property
    def fed(self) -> Fed | None:
        """The tokens that the last call fed; None where every call feeds all tokens."""
        ...

    def start(self, conditions: Sequence[Condition], *, size: tuple[int, int] | None, guided: bool) -> Backbone:
        """The backbone of one request, with its caches: `labels` are then indices into `conditions`.

        `size` is the height and width of images in pixels, None the model's own; `guided` says whether any call will
        have a `scale`. Itself where labels are classes and there is nothing to cache.
        Raises ModelError or ArgumentError for conditions that it cannot read.
        """
        ...

    def reusing(self, layer: int | None) -> ReusingBackbone | None:
        """A backbone for one request whose calls reuse results of earlier calls; None where there is none.

        `layer` is the decoder layer, from 0, whose values show which positions have changed; None: all positions are
        always computed. Raises ModelError if the decoder has no such layer.
        """
        ...

    def states(
        self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, scale: Tensor | None = None
    ) -> States:
        """States of the tokens that `wanted` marks, row after row, in raster order.

        Args:
            latents: [R, S, d] float32; arbitrary where a token is not known.
            known: [R, S] bool. Unknown tokens are not attended to.
            labels: [R] int64: the class of each row, or its condition (`start`); there, no two rows have the same.
            wanted: [R, S] bool.
            scale: [R] float32, the guidance of each row; None is no guidance, at half the cost.
        """
        ...

    def parameters(self) -> Iterable[Tensor]: ...


class ReusingBackbone(Backbone, Protocol):
    """A backbone whose calls reuse earlier results, for the same rows, which advance by equally many tokens."""

    reuse: Reuse  # results that the next calls reuse

    @property
    def sequences(self) -> int:
        """Rows of the last call for each of its images: 2 if it computed both halves of guidance, else 1."""
        ...

    @property
    def computed(self) -> Sequence[tuple[int, ...]] | None:
        """The tokens of each row that passed all layers in the last call; None: all of an image."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class ContinuousModel(ImageModel):
    """A model of vectors: a backbone that computes states, and a head that computes tokens' distributions."""

    backbone: Backbone
    head: Head


def check_pair(draft: ContinuousModel, target: ContinuousModel) -> None:
    """Raises ModelError unless the two have the same tokens and classes."""
    for what, ours, theirs in (
        ("tokens per image", target.backbone.tokens, draft.backbone.tokens),
        ("numbers per token", target.head.size, draft.head.size),
        ("classes", target.imaging.classes, draft.imaging.classes),
        ("steps of the head", target.head.steps, draft.head.steps),
    ):
        if ours != theirs:
            raise ModelError(
                f"{draft.name} cannot draft for {target.name}: it has {theirs} {what}, not {ours}",
                "draft with a smaller model of the same tokens",
            )


def read_sizes(config: Mapping[str, Any], *names: str) -> list[int]:
    """Positive whole numbers of a configuration by name. Raises ModelError for a missing or wrong one."""
    values = []
    for name in names:
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"the configuration has {name}={value!r}, which must be a whole number of at least 1")
        values.append(value)
    return values
