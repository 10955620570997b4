"""A result as an image or an animation of the decode order, with Pillow alone.

Pillow's default font has Latin letters only: other scripts appear as boxes in the right colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from . import frames, image_view
from .colour import ink, shade
from .frames import MARGIN, encode, truncate
from .token_grid import Cell, cells, heading, last_step

if TYPE_CHECKING:
    from ..result_data import ResultData

WIDTH, LINE, SIZE = 900, 30, 17  # pixels


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    cell: Cell


def png(result: ResultData) -> bytes:
    """The finished text, each token on the colour of the forward that committed it."""
    if result.images:
        return image_view.png(result)
    drawing = _Drawing(result)
    return encode([drawing.frame(drawing.last)], "PNG")


def gif(result: ResultData) -> bytes:
    """One frame per forward, from the prompt alone to the finished text, which stays longer."""
    if result.images:
        return image_view.gif(result)
    drawing = _Drawing(result)
    stride = -(-(drawing.last + 2) // frames.FRAMES)
    steps = [*range(-1, drawing.last, stride), drawing.last]
    return encode([drawing.frame(step) for step in steps], "GIF")


class _Drawing:
    """The layout of all tokens, and the frame of each forward."""

    def __init__(self, result: ResultData) -> None:
        self.font = ImageFont.load_default(SIZE)
        self.title = truncate(heading(result), self.font, WIDTH - 2 * MARGIN)
        rows = cells(result)
        self.last = last_step(rows)
        self.boxes: list[_Box] = []
        top = float(MARGIN + LINE)
        for row in rows:
            top = self._lay_out(row, top) + LINE * 1.5
        self.height = int(top)

    def _lay_out(self, row: list[Cell], top: float) -> float:
        """Lays a row out with line breaks and returns the top of its last line."""
        left = float(MARGIN)
        for cell in row:
            breaks = cell.text.count("\n")
            width = max(self.font.getlength(_flat(cell.text)), 8.0)
            if breaks or left + width > WIDTH - MARGIN:
                left, top = float(MARGIN), top + LINE * max(breaks, 1)
            self.boxes.append(_Box(left, top, left + width, cell))
            left += width + 1
        return top

    def frame(self, step: int) -> Image.Image:
        """The frame after forward `step`, -1 before the first."""
        image = Image.new("RGB", (WIDTH, self.height), "white")
        draw = ImageDraw.Draw(image)
        draw.text((MARGIN, MARGIN / 2), self.title, fill="#57606a", font=self.font)
        for box in self.boxes:
            area = (box.left, box.top, box.right, box.top + LINE - 6)
            if box.cell.step < 0:
                draw.text((box.left, box.top), _flat(box.cell.text), fill="#8b949e", font=self.font)
            elif box.cell.step > step:
                draw.rectangle(area, fill="#eaeef2")
            else:
                background = shade(box.cell.step, self.last)
                draw.rectangle(area, fill=background)
                draw.text((box.left, box.top), _flat(box.cell.text), fill=ink(background), font=self.font)
        return image


def _flat(text: str) -> str:
    return text.replace("\n", " ")
