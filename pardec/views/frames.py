"""Encoding of frames as a PNG or an animated GIF."""

from __future__ import annotations

from io import BytesIO

from PIL import Image, ImageFont

MARGIN = 16  # pixels
FRAME_MS, HOLD_MS = 250, 2500
FRAMES = 240  # at most, about; an animation of more forwards skips some


def encode(frames: list[Image.Image], kind: str) -> bytes:
    """One file: a PNG of the first frame or a GIF of all frames."""
    buffer = BytesIO()
    durations = [FRAME_MS] * (len(frames) - 1) + [HOLD_MS]
    extra = {"save_all": True, "append_images": frames[1:], "duration": durations, "loop": 0} if kind == "GIF" else {}
    frames[0].save(buffer, kind, **extra)
    return buffer.getvalue()


def truncate(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The text, truncated to `width` pixels."""
    while text and font.getlength(text) > width:
        text = text[:-4].rstrip(". ") + "..." if len(text) > 4 else ""
    return text
