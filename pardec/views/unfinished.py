"""Pictures that are still being decoded: the codes that events told so far, drawn with what is not known left blank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from pardec.models.vision.vq import to_pictures
from pardec.pngs import BLANK
from pardec.samplers.events import Event, RowFinished, Started, Step

if TYPE_CHECKING:
    from pardec.models.imaging import Imaging, Layout


class Codes:
    """The codes of a request's pictures as its events tell them; every event must come through here, in order.

    Attributes:
        codes: [B, h*w] int64, row by row of the picture; -1 where a code is not known yet.
        fresh: [B, h*w] bool: what the latest step committed.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.codes = np.zeros((0, layout.rows * layout.columns), dtype=np.int64)
        self.fresh = np.zeros(self.codes.shape, dtype=bool)

    @property
    def known(self) -> int:
        """How many cells of all pictures are known."""
        return int((self.codes >= 0).sum())

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        places = np.arange(self.layout.tokens)
        if isinstance(event, Started):
            self.starts = event.prompts.copy()
            self.codes = np.full((len(self.starts), self.codes.shape[1]), -1, dtype=np.int64)
            self.fresh = np.zeros(self.codes.shape, dtype=bool)
        elif isinstance(event, Step):
            where = self.starts[event.rows, None] + places
            tokens, still = (np.take_along_axis(array, where, 1) for array in (event.tokens, event.open))
            self.codes[event.rows] = self._codes(np.where(still, -1, tokens))
            self.fresh[:] = False
            fresh = np.take_along_axis(event.committed, where, 1)
            self.fresh[event.rows] = self._codes(np.where(fresh, tokens, -1)) >= 0
        elif isinstance(event, RowFinished):
            start = int(self.starts[event.row])
            self.codes[event.row] = self._codes(event.tokens[start : start + len(places)])

    def _codes(self, tokens: np.ndarray) -> np.ndarray:
        """[..., h*w] of tokens [..., T]."""
        return self.layout.codes(torch.from_numpy(tokens)).flatten(-2).numpy()


def unfinished(imaging: Imaging, codes: np.ndarray) -> list[Image.Image]:
    """The pictures of codes [B, h*w], a cell without one (-1) blank. A decoder sees past the cell: edges may change."""
    grid = imaging.layout.grid
    made = []
    for row in codes:
        whole = imaging.decode(torch.from_numpy(row.clip(min=0)).view(1, *grid))
        made.append(blanked(Image.fromarray(to_pictures(whole)[0]), (row >= 0).reshape(grid)))
    return made


def blanked(picture: Image.Image, known: np.ndarray) -> Image.Image:
    """The picture with the cells blank that are not `known` [h, w]."""
    (rows, columns), pixels = known.shape, np.array(picture)
    across = np.arange(picture.width) * columns // picture.width
    down = np.arange(picture.height) * rows // picture.height
    pixels[~known[down[:, None], across]] = BLANK
    return Image.fromarray(pixels)
