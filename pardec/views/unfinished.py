"""Images that are still being decoded: what events told so far, drawn with what is not known left blank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from pardec.models.images.vq import to_images
from pardec.samplers.events import Event, Finished, RowFinished, Sampled, Started, Step

from ..images.pngs import BLANK

if TYPE_CHECKING:
    from pardec.models.images.contracts import ImageLayout, Imaging


class Codes:
    """The codes or vectors of a request's images as its events tell them; all must come through here, in order.

    Attributes:
        codes: [B, h*w] int64, row by row of the image; -1 where a code is not known yet. 0 stands for any vector.
        fresh: [B, h*w] bool: what the latest step committed.
        latents: [B, h*w, d] float32, the vectors, 0 where one is not known yet; None where tokens are ids.
    """

    def __init__(self, layout: ImageLayout) -> None:
        self.layout = layout
        self.codes = np.zeros((0, layout.rows * layout.columns), dtype=np.int64)
        self.fresh = np.zeros(self.codes.shape, dtype=bool)
        self.latents: np.ndarray | None = None

    def tensor(self) -> torch.Tensor:
        """The codes [B, h, w], or the vectors [B, h, w, d]; -1, or 0, where none is known."""
        return gridded(self.codes if self.latents is None else self.latents, self.layout)

    @property
    def known(self) -> int:
        """How many cells of all images are known."""
        return int((self.codes >= 0).sum())

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        places = np.arange(self.layout.tokens)
        if isinstance(event, Started):
            self.starts = event.prompts.copy()
            self.codes = np.full((len(self.starts), self.codes.shape[1]), -1, dtype=np.int64)
            self.fresh = np.zeros(self.codes.shape, dtype=bool)
            self.latents = None
        elif isinstance(event, Step):
            where = self.starts[event.rows, None] + places
            tokens, still = (np.take_along_axis(array, where, 1) for array in (event.tokens, event.open))
            self.codes[event.rows] = self._codes(np.where(still, -1, tokens))
            self.fresh[:] = False
            fresh = np.take_along_axis(event.committed, where, 1)
            self.fresh[event.rows] = self._codes(np.where(fresh, tokens, -1)) >= 0
            if isinstance(event, Sampled):
                if self.latents is None:
                    self.latents = np.zeros((*self.codes.shape, event.latents.shape[-1]), dtype=np.float32)
                self.latents[event.rows] = event.latents
        elif isinstance(event, RowFinished):
            start = int(self.starts[event.row])
            self.codes[event.row] = self._codes(event.tokens[start : start + len(places)])
        elif isinstance(event, Finished) and event.latents is not None:
            self.latents = event.latents

    def _codes(self, tokens: np.ndarray) -> np.ndarray:
        """[..., h*w] of tokens [..., T]."""
        return self.layout.codes(torch.from_numpy(tokens)).flatten(-2).numpy()


def unfinished(imaging: Imaging, codes: np.ndarray, latents: np.ndarray | None = None) -> list[Image.Image]:
    """The images of codes [B, h*w], or of vectors [B, h*w, d], where `codes` says which there are.

    A cell without one (-1) is blank. A decoder sees past the cell: edges may change.
    """
    made = []
    for row, whole in zip(codes >= 0, decodable(imaging, codes, latents), strict=True):
        image = Image.fromarray(to_images(imaging.decode(whole[None]))[0])
        made.append(blanked(image, row.reshape(imaging.layout.grid)))
    return made


def decodable(imaging: Imaging, codes: np.ndarray, latents: np.ndarray | None = None) -> torch.Tensor:
    """What `imaging.decode` takes: codes [B, h, w], or vectors [B, h, w, d]; 0 where nothing is known."""
    return gridded(codes.clip(min=0) if latents is None else latents, imaging.layout)


def gridded(cells: np.ndarray, layout: ImageLayout) -> torch.Tensor:
    """Cells [B, h*w, ...] as [B, h, w, ...]."""
    return torch.from_numpy(cells).reshape(len(cells), *layout.grid, *cells.shape[2:])


def blanked(image: Image.Image, known: np.ndarray) -> Image.Image:
    """The image with the cells blank that are not `known` [h, w]."""
    (rows, columns), pixels = known.shape, np.array(image)
    across = np.arange(image.width) * columns // image.width
    down = np.arange(image.height) * rows // image.height
    pixels[~known[down[:, None], across]] = BLANK
    return Image.fromarray(pixels)
