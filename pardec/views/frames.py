"""Frames of a still image or an animation, as one file."""

from __future__ import annotations

from io import BytesIO

from PIL import Image, ImageFont

MARGIN = 16  # pixels
FRAME_MS, HOLD_MS = 250, 2500
FRAMES = 240  # an animation of more forwards skips some


def encode(frames: list[Image.Image], kind: str) -> bytes:
    """The frames as one file, a PNG of the first or a GIF of all."""
    held = BytesIO()
    durations = [FRAME_MS] * (len(frames) - 1) + [HOLD_MS]
    extra = {"save_all": True, "append_images": frames[1:], "duration": durations, "loop": 0} if kind == "GIF" else {}
    frames[0].save(held, kind, **extra)
    return held.getvalue()


def cut(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The text, cut so that it fits `width` pixels."""
    while text and font.getlength(text) > width:
        text = text[:-4].rstrip(". ") + "..." if len(text) > 4 else ""
    return text
