"""A result as an image or an animation of the decode order, with Pillow alone.

Pillow's own font has Latin letters; other scripts show as boxes, their colours stay right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from . import frames, image_view
from .colour import ink, shade
from .frames import MARGIN, cut, encode
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
    """The finished canvas, each token on the colour of the forward that committed it."""
    if result.images:
        return image_view.png(result)
    drawing = _Drawing(result)
    return encode([drawing.frame(drawing.last)], "PNG")


def gif(result: ResultData) -> bytes:
    """One frame a forward, from the empty canvas to the finished one, which stays longer."""
    if result.images:
        return image_view.gif(result)
    drawing = _Drawing(result)
    stride = -(-(drawing.last + 2) // frames.FRAMES)
    steps = [*range(-1, drawing.last, stride), drawing.last]
    return encode([drawing.frame(step) for step in steps], "GIF")


class _Drawing:
    """Where every token stands, and how the canvas looks after each forward."""

    def __init__(self, result: ResultData) -> None:
        self.font = ImageFont.load_default(SIZE)
        self.title = heading(result)
        rows = cells(result)
        self.last = last_step(rows)
        self.boxes: list[_Box] = []
        top = float(MARGIN + LINE)
        for row in rows:
            top = self._place(row, top) + LINE * 1.5
        self.height = int(top)

    def _place(self, row: list[Cell], top: float) -> float:
        """Lays a row out, breaking lines; returns the top of its last line."""
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
        """The canvas after forward `step`, -1 before any."""
        image = Image.new("RGB", (WIDTH, self.height), "white")
        draw = ImageDraw.Draw(image)
        draw.text((MARGIN, MARGIN / 2), cut(self.title, self.font, WIDTH - 2 * MARGIN), fill="#57606a", font=self.font)
        for box in self.boxes:
            area = (box.left, box.top, box.right, box.top + LINE - 6)
            if box.cell.step < 0:
                draw.text((box.left, box.top), _flat(box.cell.text), fill="#8b949e", font=self.font)
            elif box.cell.step > step:
                draw.rectangle(area, fill="#eaeef2")
            else:
                ground = shade(box.cell.step, self.last)
                draw.rectangle(area, fill=ground)
                draw.text((box.left, box.top), _flat(box.cell.text), fill=ink(ground), font=self.font)
        return image


def _flat(text: str) -> str:
    return text.replace("\n", " ")
