"""Views of token maps: the probability of each code per map, and the image averaged to the cells of one map."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageColor

from ..images import pngs
from .colour import RAMP, shade

if TYPE_CHECKING:
    from ..result_data import ResultData

LEGEND = "right: the token maps, coarse to fine, each code from dark to light by how likely it was"


def split(result: ResultData, row: int, values: np.ndarray) -> list[np.ndarray]:
    """`values` [B, L] of a row as its maps, [side, side] each, coarse to fine."""
    assert result.sides is not None, "a result of token maps"
    start = result.prompts[row]
    ends = accumulate(side * side for side in result.sides)
    return [
        values[row, start + end - side * side : start + end].reshape(side, side)
        for side, end in zip(result.sides, ends, strict=True)
    ]


def heatmap(result: ResultData, row: int, size: tuple[int, int]) -> Image.Image:
    """The probability of every code, its maps side by side in an image of `size` (width, height)."""
    ramp = np.array([ImageColor.getrgb(shade(step, RAMP - 1)) for step in range(RAMP)], dtype=np.uint8)
    maps = split(result, row, result.trace.commit_score)
    rows, columns = pngs.squarest(len(maps))
    panel = max(1, (size[0] - pngs.GAP * (columns - 1)) // columns), max(1, (size[1] - pngs.GAP * (rows - 1)) // rows)
    panels = [
        Image.fromarray(ramp[np.rint(np.nan_to_num(each).clip(0, 1) * (RAMP - 1)).astype(int)]).resize(
            panel, Image.Resampling.NEAREST
        )
        for each in maps
    ]
    whole = Image.new("RGB", size, pngs.BLANK)
    whole.paste(pngs.sheet(panels, (rows, columns)))
    return whole


def reduced(image: Image.Image, side: int) -> Image.Image:
    """The image averaged over the cells of a token map with this side, enlarged to its own size."""
    small = image.resize((min(side, image.width), min(side, image.height)), Image.Resampling.BOX)
    return small.resize(image.size, Image.Resampling.NEAREST)
