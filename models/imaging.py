"""What a model of pictures has beside its stack: how it reads a condition, and how it turns codes into pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .conditioned import Prefix
from .sources import Source
from .weights import Published


@dataclass(frozen=True, eq=False)
class Condition:
    """What one picture is to show: a caption, or features of one, or a class."""

    text: str | None = None
    label: int | None = None
    features: Tensor | None = None  # [n, D] what the model's text encoder makes of the caption, padding left out
    places: Tensor | None = None  # [n] int64: with `features`, their places among all that there can be; None: the last


@dataclass(frozen=True, slots=True)
class Picturing:
    """What the picture side of a checkpoint is built from."""

    source: Source
    config: dict[str, Any]
    published: Mapping[str, Published]
    vocab: int
    device: torch.device
    dtype: torch.dtype
    decoder: str | None  # the image tokenizer that the caller names
    text_encoder: str | None  # and the text encoder
    offline: bool


class Imaging(Protocol):
    """The picture side of a checkpoint. Ids of its tokens are codes, one a cell, row by row."""

    @property
    def kind(self) -> Literal["class", "text"]:
        """What conditions are."""
        ...

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        ...

    @property
    def classes(self) -> int:
        """How many classes there are; 0 for captions."""
        ...

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Arguments of `generate` that the checkpoint's authors draw pictures with: temperature, top_k, cfg, ..."""
        ...

    @property
    def codebook(self) -> Tensor | None:
        """[V, C] float32: what each code looks like, as rows to be compared by distance; None without a tokenizer."""
        ...

    @property
    def drawable(self) -> bool:
        """Whether codes can be decoded."""
        ...

    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        """The input states of conditions, and of their absence. Raises ModelError for one that cannot be read."""
        ...

    def decode(self, codes: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1], float32, of codes [B, h, w]. Raises ModelError without a decoder."""
        ...
