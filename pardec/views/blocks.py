"""Images in a terminal: by the kitty or iTerm2 protocol, else as half-block characters of two pixels each."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Literal

from PIL import Image
from rich.color import Color
from rich.style import Style
from rich.text import Text

Protocol = Literal["kitty", "iterm", "blocks"]

_CHUNK = 4096  # bytes of base64 data that one kitty command may carry
_UPPER = "▀"
_ID = 7121  # kitty's id of our image: the next image with this id replaces it


def protocol(environment: Mapping[str, str]) -> Protocol:
    """How the terminal with these environment variables shows images; inside tmux and screen, as characters."""
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if "TMUX" in environment or term.startswith(("screen", "tmux")):
        return "blocks"
    if "KITTY_WINDOW_ID" in environment or "kitty" in term or program.lower() == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    return "blocks"


def shrink_to_fit(image: Image.Image, columns: int, lines: int) -> Image.Image:
    """The image, scaled down if it is wider than `columns` pixels or higher than two pixels per line."""
    scale = min(columns / image.width, 2 * lines / image.height, 1.0)
    if scale == 1.0:
        return image
    size = max(int(image.width * scale), 1), max(int(image.height * scale), 1)
    return image.resize(size, Image.Resampling.BOX)


def half_blocks(image: Image.Image) -> Text:
    """The image as text: a character's foreground is the upper pixel, its background the lower one."""
    pixels = image.convert("RGB").load()
    assert pixels is not None, "load() returns the pixels of every image in memory"
    text = Text(no_wrap=True)
    for top in range(0, image.height, 2):
        for column in range(image.width):
            style = Style(color=_colour(pixels[column, top]))
            if top + 1 < image.height:
                style += Style(bgcolor=_colour(pixels[column, top + 1]))
            text.append(_UPPER, style)
        text.append("\n" if top + 2 < image.height else "")
    return text


def _colour(pixel: Any) -> Color:
    return Color.from_rgb(*pixel)


def display_size(image: Image.Image, columns: int, lines: int) -> tuple[int, int]:
    """Width and height of the image in characters, twice as high as wide: at least 12 lines if they fit."""
    height = min(max(image.height // 20, 12), max(lines, 1))
    width = max(round(2 * height * image.width / image.height), 1)
    if width > columns:
        width, height = columns, max(round(columns * image.height / image.width / 2), 1)
    return width, height


def escape_sequence(image: Image.Image, protocol: Protocol, width: int, height: int) -> str:
    """The escape sequence that shows the image on `width` x `height` characters without moving the cursor."""
    buffer = BytesIO()
    image.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    if protocol == "iterm":
        size = f"width={width};height={height};preserveAspectRatio=1;doNotMoveCursor=1;size={len(buffer.getvalue())}"
        return f"\x1b]1337;File=inline=1;{size}:{data}\a"
    return "".join(_kitty(data, width, height))


def _kitty(data: str, width: int, height: int) -> Iterator[str]:
    keys = f"a=T,f=100,i={_ID},p=1,q=2,C=1,c={width},r={height},"
    for start in range(0, len(data), _CHUNK):
        more = int(start + _CHUNK < len(data))
        yield f"\x1b_G{keys}m={more};{data[start : start + _CHUNK]}\x1b\\"
        keys = ""
