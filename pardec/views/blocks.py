"""Images in a terminal: as images where it shows them, else as half-block characters, two pixels each."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Literal

from PIL import Image
from rich.color import Color
from rich.style import Style
from rich.text import Text

Way = Literal["kitty", "iterm", "blocks"]

_CHUNK = 4096  # bytes of base64 that one of kitty's commands takes
_UPPER = "▀"
_ID = 7121  # of our image among kitty's: what comes next with it takes its place


def way(environment: Mapping[str, str]) -> Way:
    """How the terminal of these environment variables shows images. Inside tmux and screen, with characters."""
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if "TMUX" in environment or term.startswith(("screen", "tmux")):
        return "blocks"
    if "KITTY_WINDOW_ID" in environment or "kitty" in term or program.lower() == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    return "blocks"


def fitting(image: Image.Image, columns: int, lines: int) -> Image.Image:
    """The image, made smaller where it has more than `columns` pixels across or two for each of `lines` down."""
    share = min(columns / image.width, 2 * lines / image.height, 1.0)
    if share == 1.0:
        return image
    size = max(int(image.width * share), 1), max(int(image.height * share), 1)
    return image.resize(size, Image.Resampling.BOX)


def half_blocks(image: Image.Image) -> Text:
    """The image as text: the upper pixel is a character's own colour, the lower one its ground."""
    pixels = image.convert("RGB").load()
    assert pixels is not None, "an image has pixels"
    text = Text(no_wrap=True)
    for top in range(0, image.height, 2):
        for at in range(image.width):
            style = Style(color=_colour(pixels[at, top]))
            if top + 1 < image.height:
                style += Style(bgcolor=_colour(pixels[at, top + 1]))
            text.append(_UPPER, style)
        text.append("\n" if top + 2 < image.height else "")
    return text


def _colour(pixel: Any) -> Color:
    return Color.from_rgb(*pixel)


def extent(image: Image.Image, columns: int, lines: int) -> tuple[int, int]:
    """Columns and lines of characters, twice as high as wide, for an image that is to be seen: 12 lines or more."""
    down = min(max(image.height // 20, 12), max(lines, 1))
    across = max(round(2 * down * image.width / image.height), 1)
    if across > columns:
        across, down = columns, max(round(columns * image.height / image.width / 2), 1)
    return across, down


def inline(image: Image.Image, way: Way, across: int, down: int) -> str:
    """The command that shows the image on `across` x `down` characters and leaves the cursor where it was."""
    held = BytesIO()
    image.save(held, "PNG")
    data = base64.b64encode(held.getvalue()).decode("ascii")
    if way == "iterm":
        size = f"width={across};height={down};preserveAspectRatio=1;doNotMoveCursor=1;size={len(held.getvalue())}"
        return f"\x1b]1337;File=inline=1;{size}:{data}\a"
    return "".join(_kitty(data, across, down))


def _kitty(data: str, across: int, down: int) -> Iterator[str]:
    keys = f"a=T,f=100,i={_ID},p=1,q=2,C=1,c={across},r={down},"
    for start in range(0, len(data), _CHUNK):
        more = int(start + _CHUNK < len(data))
        yield f"\x1b_G{keys}m={more};{data[start : start + _CHUNK]}\x1b\\"
        keys = ""
