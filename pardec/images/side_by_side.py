"""One image by several samplers, side by side: every frame shows each of them one forward further."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from pardec.models.errors import SpecError
from pardec.samplers.events import Finished, Step

from ..requests.images import with_defaults
from ..views.frames import MARGIN, encode, truncate
from ..views.unfinished import Codes, unfinished
from . import pngs

if TYPE_CHECKING:
    from ..api import Model
    from ..result import Result

LINE, SIZE = 20, 13  # pixels
MOST = 36  # frames, about
COLOURS = 64  # colours of a frame


def unfolding(model: Model, prompt: Any = None, **arguments: Any) -> tuple[list[Image.Image], Result]:
    """The image of a request after each of its forwards, with unknown tokens blank, and the result.

    Args:
        prompt: one caption, or None with `label`.
        arguments: of `Model.generate`; missing ones take the checkpoint's values.

    Raises:
        SpecError: a text model, a model without a decoder, or a request for several images.
    """
    imaging = model.imaging
    if imaging is None or not imaging.can_decode:
        raise SpecError(f"{model.name} draws no images", hint="name an image model, with its decoder")
    call = model.prepare(prompt, **with_defaults(imaging, arguments))
    if len(call.seeds) != 1:
        raise SpecError(
            f"only one image can be shown, and {len(call.seeds)} are requested", hint="give one caption or class"
        )
    codes, images, result = Codes(imaging.layout), list[Image.Image](), None
    for event in model.run(call):
        codes(event)
        if isinstance(event, Step):
            images += unfinished(imaging, codes.codes, codes.latents)
        elif isinstance(event, Finished):
            result = model.result(call, event, 0.0)
    assert result is not None, "a loop ends with Finished"
    return images, result


def animation(columns: Sequence[tuple[str, Sequence[Image.Image]]], *, scale: int = 3) -> bytes:
    """A GIF with one column per (title, images after each forward); finished columns keep their last image.

    `scale` repeats each pixel.
    """
    last = max(len(images) for _, images in columns)
    stride = -(-last // MOST)
    frames = [_frame(columns, min(step, last - 1), scale) for step in range(0, last + stride - 1, stride)]
    return encode(frames, "GIF")


def _frame(columns: Sequence[tuple[str, Sequence[Image.Image]]], step: int, scale: int) -> Image.Image:
    font, tiles = ImageFont.load_default(SIZE), []
    for title, images in columns:
        at = min(step, len(images) - 1)
        image = images[at].resize((images[at].width * scale, images[at].height * scale), Image.Resampling.NEAREST)
        tile = Image.new("RGB", (image.width, image.height + 2 * LINE), "white")
        tile.paste(image, (0, LINE))
        draw, ending = ImageDraw.Draw(tile), ", finished" if at == len(images) - 1 else ""
        draw.text((0, 2), truncate(title, font, image.width), fill="#24292f", font=font)
        draw.text((0, LINE + image.height + 3), f"{at + 1} forwards{ending}", fill="#57606a", font=font)
        tiles.append(tile)
    sheet = pngs.sheet(tiles, (1, len(tiles)), gap=MARGIN, ground=(255, 255, 255))
    framed = Image.new("RGB", (sheet.width + 2 * MARGIN, sheet.height + 2 * MARGIN), "white")
    framed.paste(sheet, (MARGIN, MARGIN))
    return framed.quantize(COLOURS, dither=Image.Dither.NONE)  # noise costs more than it shows
