"""A result as a picture or an animation of the decode order, with Pillow alone.

Pillow's own font has Latin letters; other scripts show as boxes, their colours stay right.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from .colour import ink, shade
from .token_grid import Cell, cells, heading, last_step

if TYPE_CHECKING:
    from ..result import Result

WIDTH, MARGIN, LINE, SIZE = 900, 16, 30, 17  # pixels
FRAME_MS, HOLD_MS = 250, 2500
FRAMES = 240  # an animation of more forwards skips some


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    cell: Cell


def png(result: Result) -> bytes:
    """The finished canvas, each token on the colour of the forward that committed it."""
    if result.images:
        from . import image_view

        return image_view.png(result)
    drawing = _Drawing(result)
    return encode([drawing.frame(drawing.last)], "PNG")


def gif(result: Result) -> bytes:
    """One frame a forward, from the empty canvas to the finished one, which stays longer."""
    if result.images:
        from . import image_view

        return image_view.gif(result)
    drawing = _Drawing(result)
    stride = -(-(drawing.last + 2) // FRAMES)
    steps = [*range(-1, drawing.last, stride), drawing.last]
    return encode([drawing.frame(step) for step in steps], "GIF")


def encode(frames: list[Image.Image], kind: str) -> bytes:
    """The frames as one file, a PNG of the first or a GIF of all."""
    held = BytesIO()
    durations = [FRAME_MS] * (len(frames) - 1) + [HOLD_MS]
    extra = {"save_all": True, "append_images": frames[1:], "duration": durations, "loop": 0} if kind == "GIF" else {}
    frames[0].save(held, kind, **extra)
    return held.getvalue()


class _Drawing:
    """Where every token stands, and how the canvas looks after each forward."""

    def __init__(self, result: Result) -> None:
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


def cut(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The text, cut so that it fits `width` pixels."""
    while text and font.getlength(text) > width:
        text = text[:-4].rstrip(". ") + "..." if len(text) > 4 else ""
    return text
