"""What a model of pictures has beside its stack: how it reads a condition, and how it turns codes into pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..loading.sources import Source
from ..loading.weights import Published
from .conditioned import Prefix


@dataclass(frozen=True, eq=False)
class Condition:
    """What one picture is to show: a caption, or features of one, or a class."""

    text: str | None = None
    label: int | None = None
    negative: str | None = None  # of a caption: what guidance leads away from, in place of nothing said
    features: Tensor | None = None  # [n, D] what the model's text encoder makes of the caption, padding left out
    places: Tensor | None = None  # [n] int64: with `features`, their places among all that there can be; None: the last


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the codes of a picture stand among its tokens: row by row, and what a family writes between and behind."""

    rows: int
    columns: int
    row_end: int | None = None  # the token behind every row
    closing: tuple[int, ...] = ()  # the tokens behind the last one
    ids: Tensor | None = None  # [codes] int64: the token of each code; None: a code is its own

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.rows, self.columns

    @property
    def stride(self) -> int:
        """Tokens from a row to the next."""
        return self.columns + (self.row_end is not None)

    @property
    def tokens(self) -> int:
        """Tokens of a picture."""
        return self.rows * self.stride + len(self.closing)

    @property
    def plain(self) -> bool:
        """Whether a picture's tokens are its codes, and any of them may stand anywhere."""
        return self.row_end is None and not self.closing and self.ids is None

    def forced(self) -> Tensor:
        """[tokens] int64: the one token that may stand at each place, -1 where a code does."""
        places = torch.full((self.tokens,), -1)
        if self.row_end is not None:
            places[self.columns : self.rows * self.stride : self.stride] = self.row_end
        if self.closing:
            places[-len(self.closing) :] = torch.tensor(self.closing)
        return places

    def codes(self, tokens: Tensor) -> Tensor:
        """The codes [..., rows, columns] of tokens [..., tokens]; -1 where one is not known (-1) or stands for none."""
        body = tokens[..., : self.rows * self.stride]
        found = body.reshape(*tokens.shape[:-1], self.rows, self.stride)[..., : self.columns]
        if self.ids is None:
            return found
        ids = self.ids.to(tokens.device)
        of = torch.full((int(ids.max()) + 2,), -1, device=tokens.device)  # the last entry is for other tokens
        of[ids] = torch.arange(len(ids), device=tokens.device)
        return of[torch.where((found < 0) | (found > ids.max()), len(of) - 1, found)]


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


class Pictures(Protocol):
    """The picture side of a checkpoint, whatever its tokens are."""

    @property
    def kind(self) -> Literal["class", "text"]:
        """What conditions are."""
        ...

    @property
    def layout(self) -> Layout:
        """Where codes, or vectors, stand among the tokens of a picture."""
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
    def drawable(self) -> bool:
        """Whether tokens can be decoded."""
        ...

    @property
    def cell(self) -> int:
        """Pixels along one side of a cell. Raises ModelError without a decoder."""
        ...

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1], float32, of codes [B, h, w], or of vectors [B, h, w, d].

        Raises ModelError without a decoder.
        """
        ...


class Imaging(Pictures, Protocol):
    """The picture side of a checkpoint whose tokens are codes."""

    @property
    def codebook(self) -> Tensor | None:
        """[V, C] float32: what each code looks like, as rows to be compared by distance; None without a tokenizer."""
        ...

    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        """The input states of conditions, and of their absence. Raises ModelError for one that cannot be read."""
        ...
