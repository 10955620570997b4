"""Results whose rows are images: the images, how they came to be, and how many tokens each forward accepted.

The map of an image gives every cell the count of the forward that committed it: the tokens accepted by that forward
and the next one, which it draws itself. A light patch was done in few forwards.
"""

from __future__ import annotations

import base64
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont
from rich.console import Group
from rich.text import Text

from pardec.models.printable import plain

from ..images import pngs
from .blocks import fitting, half_blocks
from .colour import shade
from .frames import FRAMES, MARGIN, cut, encode
from .token_grid import heading
from .unfinished import blanked

if TYPE_CHECKING:
    from ..result_data import ResultData

LEAST = 192  # pixels that an image is made high at least, by whole factors
LINE, SIZE = 24, 15
_STYLE = """
.pardec-drawn { font: 13px/1.5 system-ui, sans-serif; }
.pardec-drawn div { display: flex; flex-wrap: wrap; gap: 1em; }
.pardec-drawn figure { margin: .5em 0; max-width: 26em; }
.pardec-drawn img { height: 12em; image-rendering: pixelated; margin-right: .25em; }
.pardec-drawn small { opacity: .75; }
"""


def steps(result: ResultData, row: int) -> np.ndarray:
    """[h, w]: which forward committed each cell; -2 where none did, as an interrupted row may have it."""
    assert result.grid is not None, "a result of images has a grid"
    start = result.prompts[row]
    rows, columns = result.grid
    stride = result.stride or columns
    return result.trace.forward[row, start : start + rows * stride].reshape(rows, stride)[:, :columns]


def gained(result: ResultData, row: int) -> np.ndarray:
    """[h, w]: how many tokens the forward committed that committed each cell; 0 where none did."""
    when = steps(result, row)
    counts = np.bincount(when[when >= 0], minlength=1)
    return np.where(when >= 0, counts[when.clip(min=0)], 0)


def most(result: ResultData) -> int:
    """The most tokens that a forward gained in any row."""
    return max(int(gained(result, row).max()) for row in range(len(result.prompts)))


def heat(counts: np.ndarray, top: int, size: tuple[int, int]) -> Image.Image:
    """Counts [h, w] as an image of `size` (width, height): dark for 1, light for `top`, blank for 0."""
    colours = np.array(
        [pngs.BLANK] + [ImageColor.getrgb(shade(count - 1, top - 1)) for count in range(1, top + 1)], dtype=np.uint8
    )
    return Image.fromarray(colours[counts]).resize(size, Image.Resampling.NEAREST)


def title(result: ResultData, row: int) -> str:
    """What the image was to show."""
    shown = result.shown[row] if result.shown else None
    if isinstance(shown, str):
        return shown
    return f"image {row}" if shown is None else "no class" if shown < 0 else f"class {shown}"


def accepted(result: ResultData, row: int) -> str:
    """How many of the drafted vectors of a row were accepted, in words; empty where none was drafted, and for ids."""
    drafted = sum(result.trace.drafted[row]) if result.latents is not None and result.trace.drafted else 0
    return f"{sum(result.trace.accepted[row])} of {drafted} drafts accepted" if drafted else ""


# --- PNG and GIF ---


def png(result: ResultData) -> bytes:
    """Every image beside its map."""
    top = most(result)
    tiles = []
    for row, image in enumerate(_grown(result)):
        pair = [image, heat(gained(result, row), top, image.size)]
        caption = ", ".join(filter(None, (title(result, row), accepted(result, row))))
        tiles.append(_labelled(pngs.sheet(pair, (1, 2), gap=8), caption))
    return encode([_page(tiles, heading(result), _legend(top))], "PNG")


def gif(result: ResultData) -> bytes:
    """One frame a forward: cells that are not known yet are blank. The finished images stay longer."""
    images = _grown(result)
    when = [steps(result, row) for row in range(len(images))]
    last = max(int(one.max()) for one in when)
    frames = []
    for step in [*range(-1, last, -(-(last + 2) // FRAMES)), last]:
        shown = [
            blanked(image, (one >= 0) & (one <= step)) if step < last else image
            for image, one in zip(images, when, strict=True)
        ]
        tiles = [_labelled(image, title(result, row)) for row, image in enumerate(shown)]
        frames.append(_page(tiles, heading(result)))
    return encode(frames, "GIF")


def _grown(result: ResultData) -> list[Image.Image]:
    """The images, small ones made larger."""
    factor = max(-(-LEAST // one.height) for one in result.images or [])
    return [
        one.resize((one.width * factor, one.height * factor), Image.Resampling.NEAREST) for one in result.images or []
    ]


def _labelled(tile: Image.Image, text: str) -> Image.Image:
    font = ImageFont.load_default(SIZE)
    made = Image.new("RGB", (tile.width, tile.height + LINE), "white")
    made.paste(tile)
    draw = ImageDraw.Draw(made)
    draw.text((0, tile.height + 3), cut(text, font, tile.width), fill="#24292f", font=font)
    return made


def _page(tiles: list[Image.Image], *lines: str) -> Image.Image:
    sheet = pngs.sheet(tiles, pngs.squarest(len(tiles)), gap=MARGIN, ground=(255, 255, 255))
    font = ImageFont.load_default(SIZE)
    top = MARGIN + LINE * len(lines)
    made = Image.new("RGB", (sheet.width + 2 * MARGIN, top + sheet.height + MARGIN), "white")
    made.paste(sheet, (MARGIN, top))
    draw = ImageDraw.Draw(made)
    for at, line in enumerate(lines):
        draw.text((MARGIN, MARGIN / 2 + LINE * at), cut(line, font, sheet.width), fill="#57606a", font=font)
    return made


def _legend(top: int) -> str:
    return f"right: how many tokens the forward of each cell gained, 1 (dark) to {top} (light)"


# --- HTML ---


def data(result: ResultData) -> dict[str, Any]:
    """What the page's script draws."""
    images = []
    for row, image in enumerate(result.images or []):
        when = steps(result, row)
        images.append(
            {
                "title": title(result, row),
                "source": source(image),
                "grid": list(when.shape),
                "steps": when.ravel().tolist(),
                "gained": gained(result, row).ravel().tolist(),
                "codes": result.tokens[row] or None,
                **_tested(result, row),
                "nfe": result.nfe[row],
                "seed": str(result.seeds[row]),  # more digits than JavaScript's numbers hold
            }
        )
    return {"pictures": images, "most": most(result)}


def _tested(result: ResultData, row: int) -> dict[str, Any]:
    """Of vectors that were drafted, per forward how many it tested, and how many of them it accepted."""
    if not accepted(result, row):
        return {}
    return {"drafted": result.trace.drafted[row], "accepted": result.trace.accepted[row]}


def fragment(result: ResultData) -> str:
    """The images and their maps alone, for a notebook."""
    top = most(result)
    figures = []
    for row, image in enumerate(result.images or []):
        name = escape(title(result, row), quote=True)
        heated = heat(gained(result, row), top, image.size)
        figures.append(
            f'<figure><img src="{source(image)}" alt="{name}">'
            f'<img src="{source(heated)}" alt="tokens that the forward of each cell gained, at most {top}">'
            f"<figcaption>{name}<br><small>{_counted(result, row)}</small></figcaption>"
            "</figure>"
        )
    legend = f"<small>{escape(heading(result))}<br>{_legend(top)}</small>"
    return plain(f'<style>{_STYLE}</style><div class="pardec-drawn">{legend}<div>{"".join(figures)}</div></div>')


def _counted(result: ResultData, row: int) -> str:
    parts = (f"seed {result.seeds[row]}", f"{result.nfe[row]} forwards", accepted(result, row))
    return escape(", ".join(filter(None, parts)))


def source(image: Image.Image) -> str:
    """The image as what an img element may name."""
    return "data:image/png;base64," + base64.b64encode(pngs.png(image)).decode("ascii")


# --- terminal ---


class _Sized:
    """The images side by side, as large as the console lets them be; nothing where it has no colours."""

    def __init__(self, images: list[Image.Image]) -> None:
        self.sheet = pngs.sheet(images, pngs.squarest(len(images)))

    def __rich_console__(self, console: Any, options: Any) -> Any:
        if console.color_system is not None:
            yield half_blocks(fitting(self.sheet, options.max_width, 48))


def finished(result: ResultData) -> Group:
    """The finished images, and what each shows."""
    line = partial(Text, style="dim")
    each = range(len(result.prompts))
    caption = [filter(None, (title(result, row), f"seed {result.seeds[row]}", accepted(result, row))) for row in each]
    lines = [line(plain(" | ".join(parts))) for parts in caption]
    return Group(line(plain(heading(result))), _Sized(list(result.images or [])), *lines)
