"""Views of results whose rows are images: the images, their decode order, and the tokens committed per forward.

The heat map of an image colours every token by how many tokens its forward committed: the accepted drafts and the one
that the forward sampled itself. A light area took few forwards. Where images are token maps, each of which comes
from one forward, the heat map shows how likely their codes were, and an unfinished image is as coarse as its last map.
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
from . import token_maps
from .blocks import half_blocks, shrink_to_fit
from .colour import shade
from .frames import FRAMES, MARGIN, encode, truncate
from .token_grid import heading
from .unfinished import blank_unknown

if TYPE_CHECKING:
    from ..result_data import ResultData

MIN_HEIGHT = 192  # pixels; smaller images are enlarged by a whole factor
LINE, SIZE = 24, 15
_STYLE = """
.pardec-drawn { font: 13px/1.5 system-ui, sans-serif; }
.pardec-drawn div { display: flex; flex-wrap: wrap; gap: 1em; }
.pardec-drawn figure { margin: .5em 0; max-width: 26em; }
.pardec-drawn img { height: 12em; image-rendering: pixelated; margin-right: .25em; }
.pardec-drawn small { opacity: .75; }
"""


def steps(result: ResultData, row: int) -> np.ndarray:
    """[h, w]: which forward committed each token (of the last token map, if there are several); -2 if none did."""
    assert result.grid is not None, "a result with images has a token grid"
    if result.sides is not None:
        return token_maps.split(result, row, result.trace.forward)[-1]
    start = result.prompts[row]
    rows, columns = result.grid
    stride = result.stride or columns
    return result.trace.forward[row, start : start + rows * stride].reshape(rows, stride)[:, :columns]


def commit_counts(result: ResultData, row: int) -> np.ndarray:
    """[h, w]: how many tokens were committed by the forward that committed each one; 0 where none did."""
    when = steps(result, row)
    counts = np.bincount(when[when >= 0], minlength=1)
    return np.where(when >= 0, counts[when.clip(min=0)], 0)


def max_count(result: ResultData) -> int:
    """The most tokens that one forward committed in any row."""
    return max(int(commit_counts(result, row).max()) for row in range(len(result.prompts)))


def heatmap(counts: np.ndarray, top: int, size: tuple[int, int]) -> Image.Image:
    """Counts [h, w] as an image of `size` (width, height): dark for 1, light for `top`, blank for 0."""
    colours = np.array(
        [pngs.BLANK] + [ImageColor.getrgb(shade(count - 1, top - 1)) for count in range(1, top + 1)], dtype=np.uint8
    )
    return Image.fromarray(colours[counts]).resize(size, Image.Resampling.NEAREST)


def heat(result: ResultData, row: int, top: int, size: tuple[int, int]) -> Image.Image:
    """The heat map of a row's image, of `size` (width, height); `top` is the lightest count."""
    if result.sides is not None:
        return token_maps.heatmap(result, row, size)
    return heatmap(commit_counts(result, row), top, size)


def title(result: ResultData, row: int) -> str:
    """The caption or class of the image."""
    target = result.shown[row] if result.shown else None
    if isinstance(target, str):
        return target
    return f"image {row}" if target is None else "no class" if target < 0 else f"class {target}"


def acceptance_text(result: ResultData, row: int) -> str:
    """How many drafted vectors of a row were accepted, as text; empty without drafts or if tokens are ids."""
    drafted = sum(result.trace.drafted[row]) if result.latents is not None and result.trace.drafted else 0
    return f"{sum(result.trace.accepted[row])} of {drafted} drafts accepted" if drafted else ""


def forwards_text(result: ResultData, row: int) -> str:
    """Says how many forwards a row took, and how many more the refiner took, if there is one."""
    drafts = result.draft_forwards[row] if result.sides and result.draft_forwards else 0
    return f"{result.nfe[row]} forwards" + (f" and {drafts} of the refiner" if drafts else "")


# --- PNG and GIF ---


def png(result: ResultData) -> bytes:
    """A PNG of every image with its heat map."""
    top = max_count(result)
    tiles = []
    for row, image in enumerate(_enlarged(result)):
        pair = [image, heat(result, row, top, image.size)]
        caption = ", ".join(filter(None, (title(result, row), acceptance_text(result, row))))
        tiles.append(_with_caption(pngs.sheet(pair, (1, 2), gap=8), caption))
    return encode([_page(tiles, heading(result), _legend(result, top))], "PNG")


def gif(result: ResultData) -> bytes:
    """One frame per forward, uncommitted tokens blank; the last frame stays longer."""
    images = _enlarged(result)
    if result.sides is not None:
        return encode([_forming(result, images, scale) for scale in range(-1, len(result.sides))], "GIF")
    when = [steps(result, row) for row in range(len(images))]
    last = max(int(committed_at.max()) for committed_at in when)
    frames = []
    for step in [*range(-1, last, -(-(last + 2) // FRAMES)), last]:
        current = [
            blank_unknown(image, (committed_at >= 0) & (committed_at <= step)) if step < last else image
            for image, committed_at in zip(images, when, strict=True)
        ]
        tiles = [_with_caption(image, title(result, row)) for row, image in enumerate(current)]
        frames.append(_page(tiles, heading(result)))
    return encode(frames, "GIF")


def _forming(result: ResultData, images: list[Image.Image], scale: int) -> Image.Image:
    """A frame of token-map images, averaged to the cells of map `scale`; -1 is blank, the last map unchanged."""
    assert result.sides is not None, "a result of token maps"
    tiles = []
    for row, image in enumerate(images):
        last = scale == len(result.sides) - 1
        blank = Image.new("RGB", image.size, pngs.BLANK)
        current = image if last else blank if scale < 0 else token_maps.reduced(image, result.sides[scale])
        tiles.append(_with_caption(current, title(result, row)))
    return _page(tiles, heading(result))


def _enlarged(result: ResultData) -> list[Image.Image]:
    """The images, at least `MIN_HEIGHT` high."""
    images = result.images or []
    factor = max(-(-MIN_HEIGHT // image.height) for image in images)
    return [image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST) for image in images]


def _with_caption(tile: Image.Image, text: str) -> Image.Image:
    font = ImageFont.load_default(SIZE)
    canvas = Image.new("RGB", (tile.width, tile.height + LINE), "white")
    canvas.paste(tile)
    draw = ImageDraw.Draw(canvas)
    draw.text((0, tile.height + 3), truncate(text, font, tile.width), fill="#24292f", font=font)
    return canvas


def _page(tiles: list[Image.Image], *lines: str) -> Image.Image:
    sheet = pngs.sheet(tiles, pngs.squarest(len(tiles)), gap=MARGIN, ground=(255, 255, 255))
    font = ImageFont.load_default(SIZE)
    top = MARGIN + LINE * len(lines)
    canvas = Image.new("RGB", (sheet.width + 2 * MARGIN, top + sheet.height + MARGIN), "white")
    canvas.paste(sheet, (MARGIN, top))
    draw = ImageDraw.Draw(canvas)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN / 2 + LINE * number), truncate(line, font, sheet.width), fill="#57606a", font=font)
    return canvas


def _legend(result: ResultData, top: int) -> str:
    if result.sides is not None:
        return token_maps.LEGEND
    return f"right: for each token, how many its forward committed, 1 (dark) to {top} (light)"


# --- HTML ---


def data(result: ResultData) -> dict[str, Any]:
    """The data of the page's script."""
    images = []
    for row, image in enumerate(result.images or []):
        when = steps(result, row)
        images.append(
            {
                "title": title(result, row),
                "source": data_url(image),
                "grid": list(when.shape),
                "steps": when.ravel().tolist(),
                "gained": commit_counts(result, row).ravel().tolist(),
                "codes": result.tokens[row] or None,
                **_draft_counts(result, row),
                **_map_data(result, row),
                "nfe": len(result.trace.fed[row]) if result.sides else result.nfe[row],
                "seed": str(result.seeds[row]),  # JavaScript's numbers would lose digits
            }
        )
    return {"pictures": images, "most": max_count(result)}


def _map_data(result: ResultData, row: int) -> dict[str, Any]:
    """The sides of the token maps, and the probability of each code."""
    if result.sides is None:
        return {}
    scores = [each.ravel() for each in token_maps.split(result, row, result.trace.commit_score)]
    return {"sides": list(result.sides), "scores": [round(float(score), 4) for score in np.concatenate(scores)]}


def _draft_counts(result: ResultData, row: int) -> dict[str, Any]:
    """The drafted vectors that each forward tested, and how many of them it accepted."""
    if not acceptance_text(result, row):
        return {}
    return {"drafted": result.trace.drafted[row], "accepted": result.trace.accepted[row]}


def fragment(result: ResultData) -> str:
    """An HTML fragment for notebooks with only the images and their heat maps."""
    top = max_count(result)
    figures = []
    for row, image in enumerate(result.images or []):
        name = escape(title(result, row), quote=True)
        map_image = heat(result, row, top, image.size)
        figures.append(
            f'<figure><img src="{data_url(image)}" alt="{name}">'
            f'<img src="{data_url(map_image)}" alt="{_legend(result, top).removeprefix("right: ")}">'
            f"<figcaption>{name}<br><small>{_summary(result, row)}</small></figcaption>"
            "</figure>"
        )
    legend = f"<small>{escape(heading(result))}<br>{_legend(result, top)}</small>"
    return plain(f'<style>{_STYLE}</style><div class="pardec-drawn">{legend}<div>{"".join(figures)}</div></div>')


def _summary(result: ResultData, row: int) -> str:
    parts = (f"seed {result.seeds[row]}", forwards_text(result, row), acceptance_text(result, row))
    return escape(", ".join(filter(None, parts)))


def data_url(image: Image.Image) -> str:
    """The image as the URL of an img element."""
    return "data:image/png;base64," + base64.b64encode(pngs.png(image)).decode("ascii")


# --- terminal ---


class _ConsoleSheet:
    """The images side by side, as large as the console allows; nothing on a console without colours."""

    def __init__(self, images: list[Image.Image]) -> None:
        self.sheet = pngs.sheet(images, pngs.squarest(len(images)))

    def __rich_console__(self, console: Any, options: Any) -> Any:
        if console.color_system is not None:
            yield half_blocks(shrink_to_fit(self.sheet, options.max_width, 48))


def finished(result: ResultData) -> Group:
    """The finished images with the caption or class, seed and accepted drafts of each."""
    line = partial(Text, style="dim")
    rows = range(len(result.prompts))
    labels = [(title(result, row), f"seed {result.seeds[row]}", acceptance_text(result, row)) for row in rows]
    lines = [line(plain(" | ".join(filter(None, label)))) for label in labels]
    return Group(line(plain(heading(result))), _ConsoleSheet(list(result.images or [])), *lines)
