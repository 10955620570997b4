"""Images that are still being decoded: the tokens of the events so far, with uncommitted ones left blank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from pardec.models.images.vq import to_images
from pardec.models.scales.contracts import ScaleLayout
from pardec.samplers.events import Event, Finished, RowFinished, Sampled, Started, Step

from ..images.pngs import BLANK

if TYPE_CHECKING:
    from pardec.models.images.contracts import ImageLayout, Imaging


class Codes:
    """The codes or vectors of a request's images, collected from all its events in order.

    Attributes:
        codes: [B, h*w] int64, in raster order, or [B, L] of token maps; -1 where none is committed yet, 0 where a
            vector is.
        fresh: the same, bool: the tokens that the latest step committed.
        latents: [B, h*w, d] float32, the vectors, 0 where none is committed yet; None if tokens are ids.
    """

    def __init__(self, layout: ImageLayout) -> None:
        self.layout = layout
        self.codes = np.zeros((0, math.prod(layout.code_shape)), dtype=np.int64)
        self.fresh = np.zeros(self.codes.shape, dtype=bool)
        self.latents: np.ndarray | None = None

    def tensor(self) -> torch.Tensor:
        """The codes [B, *code_shape], -1 where unknown, or the vectors [B, h, w, d], 0 where unknown."""
        return to_grid(self.codes if self.latents is None else self.latents, self.layout)

    @property
    def known(self) -> int:
        """How many tokens of all images are known."""
        return int((self.codes >= 0).sum())

    @property
    def complete(self) -> int:
        """The number of complete rows of the token grids, or of complete token maps."""
        known = self.codes >= 0
        if isinstance(self.layout, ScaleLayout):
            starts = self.layout.scales.starts[1:-1]
            return sum(int(each.all(1).sum()) for each in np.split(known, starts, axis=1))
        return int(known.reshape(-1, *self.layout.grid).all(2).sum())

    def __call__(self, event: Event) -> None:
        """Adds one event."""
        offsets = np.arange(self.layout.tokens)
        if isinstance(event, Started):
            self.starts = event.prompts.copy()
            self.codes = np.full((len(self.starts), self.codes.shape[1]), -1, dtype=np.int64)
            self.fresh = np.zeros(self.codes.shape, dtype=bool)
            self.latents = None
        elif isinstance(event, Step):
            columns = self.starts[event.rows, None] + offsets
            tokens, is_open = (np.take_along_axis(array, columns, 1) for array in (event.tokens, event.open))
            self.codes[event.rows] = self._codes(np.where(is_open, -1, tokens))
            self.fresh[:] = False
            fresh = np.take_along_axis(event.committed, columns, 1)
            self.fresh[event.rows] = self._codes(np.where(fresh, tokens, -1)) >= 0
            if isinstance(event, Sampled):
                if self.latents is None:
                    self.latents = np.zeros((*self.codes.shape, event.latents.shape[-1]), dtype=np.float32)
                self.latents[event.rows] = event.latents
        elif isinstance(event, RowFinished):
            start = int(self.starts[event.row])
            self.codes[event.row] = self._codes(event.tokens[start : start + len(offsets)])
        elif isinstance(event, Finished) and event.latents is not None:
            self.latents = event.latents

    def _codes(self, tokens: np.ndarray) -> np.ndarray:
        """The codes [..., n] of tokens [..., T]."""
        return self.layout.codes(torch.from_numpy(tokens)).reshape(*tokens.shape[:-1], -1).numpy()


def unfinished(imaging: Imaging, codes: np.ndarray, latents: np.ndarray | None = None) -> list[Image.Image]:
    """The images of codes [B, n] or vectors [B, h*w, d], blank where a code is unknown (-1).

    A decoder looks beyond single tokens, so pixels beside a blank area may still change. An image of token maps is
    decoded from those that are known, and blank where none is.
    """
    images = []
    for known, row in zip(codes >= 0, decodable(imaging, codes, latents), strict=True):
        image = Image.fromarray(to_images(imaging.decode(row[None]))[0])
        whole = isinstance(imaging.layout, ScaleLayout)
        mask = np.full((1, 1), known.any()) if whole else known.reshape(imaging.layout.grid)
        images.append(blank_unknown(image, mask))
    return images


def decodable(imaging: Imaging, codes: np.ndarray, latents: np.ndarray | None = None) -> torch.Tensor:
    """The input of `imaging.decode`: codes [B, h, w] or vectors [B, h, w, d], 0 where unknown.

    Of token maps [B, L], -1 where unknown: such maps add nothing.
    """
    if isinstance(imaging.layout, ScaleLayout):
        return torch.from_numpy(codes)
    return to_grid(codes.clip(min=0) if latents is None else latents, imaging.layout)


def to_grid(tokens: np.ndarray, layout: ImageLayout) -> torch.Tensor:
    """Tokens [B, n, ...] as [B, *code_shape, ...]."""
    return torch.from_numpy(tokens).reshape(len(tokens), *layout.code_shape, *tokens.shape[2:])


def blank_unknown(image: Image.Image, known: np.ndarray) -> Image.Image:
    """The image with the area of every token blank that is not `known` [h, w]."""
    (rows, columns), pixels = known.shape, np.array(image)
    column = np.arange(image.width) * columns // image.width
    row = np.arange(image.height) * rows // image.height
    pixels[~known[row[:, None], column]] = BLANK
    return Image.fromarray(pixels)
