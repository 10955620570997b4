"""Images as PNG files that say how they were made, alone or on a sheet.

The text chunk `pardec` of a file is a JSON object: what the whole run was (model, spec, temperature, top_k, top_p, cfg,
cfg_interval, exact, environment), the sheet's rows and columns, and under `pictures` what is each one's own (caption or
class, seed, nfe, generated), row by row.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile, PngInfo

from pardec.models.errors import PardecError, SpecError
from pardec.models.loading.json_text import parse

KEY = "pardec"
FORMAT = "pardec.picture/1"
MOST = 4096  # fields of a sheet
PIXELS = 2**26  # of an image that is read
GAP = 2  # pixels between the images of a sheet
BLANK = (234, 238, 242)  # what no image covers
_AGAIN = ("temperature", "top_k", "top_p", "cfg", "cfg_interval")
_SELDOM = ("min_p", "negative_prompt")  # there where it was asked for

Made = dict[str, Any]


class PictureError(PardecError, ValueError):
    """A file is no image that pardec made."""


# --- sheets ---


def squarest(count: int) -> tuple[int, int]:
    """Rows and columns of the squarest sheet that holds `count` images, with as few blank fields as that allows.

    >>> squarest(4), squarest(5), squarest(6), squarest(1)
    ((2, 2), (2, 3), (2, 3), (1, 1))
    """
    columns = math.ceil(math.sqrt(count))
    return -(-count // columns), columns


def read_grid(text: str) -> tuple[int, int]:
    """Rows and columns from "2x3".

    Raises:
        SpecError: not two whole numbers, one of them 0, or more fields than a sheet can have.
    """
    found = re.fullmatch(r"\s*(\d{1,9})\s*[xX×]\s*(\d{1,9})\s*", text, re.ASCII)
    if found is None:
        raise SpecError(f"a grid is ROWSxCOLUMNS, got {text!r}", hint="2x3 is two rows of three images")
    rows, columns = int(found[1]), int(found[2])
    if not rows or not columns:
        raise SpecError(f"a grid of {rows}x{columns} holds no image", hint="rows and columns are at least 1")
    if rows * columns > MOST:
        raise SpecError(f"a grid of {rows}x{columns} has more than {MOST} fields", hint="write several files")
    return rows, columns


def check_grid(grid: tuple[int, int], count: int) -> None:
    """Raises SpecError where `grid` cannot hold `count` images."""
    rows, columns = grid
    if rows * columns < count:
        fitting = "x".join(map(str, squarest(count)))
        raise SpecError(
            f"a grid of {rows}x{columns} cannot hold {count} images",
            hint=f"{fitting} holds them; without a grid they are laid out squarely",
        )


def sheet(
    pictures: Sequence[Image.Image],
    grid: tuple[int, int],
    *,
    gap: int = GAP,
    ground: tuple[int, int, int] = BLANK,
) -> Image.Image:
    """The images row by row; fields behind the last one stay blank. A single image on 1x1 is the image itself."""
    check_grid(grid, len(pictures))
    rows, columns = grid
    width, height = max(one.width for one in pictures), max(one.height for one in pictures)
    made = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), ground)
    for at, one in enumerate(pictures):
        row, column = divmod(at, columns)
        made.paste(one, (column * (width + gap), row * (height + gap)))
    return made


# --- what a file says ---


def made_by(result: Any) -> list[Made]:
    """What is each image's own: caption or class, seed, forwards, tokens. `result` is a ResultData of images."""
    return [
        {
            **named(result.shown[row] if result.shown else None),
            "seed": result.seeds[row],
            "nfe": result.nfe[row],
            "generated": result.generated[row],
        }
        for row in range(len(result.tokens))
    ]


def named(shown: str | int | None) -> Made:
    """A caption or a class under its name."""
    return {"caption": shown} if isinstance(shown, str) else {} if shown is None else {"class": shown}


def about(
    *,
    model: str,
    spec: str,
    exact: str,
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
    pictures: Sequence[Made],
    grid: tuple[int, int] = (1, 1),
    loaded: Mapping[str, Any] | None = None,
    scale: int = 1,
) -> Made:
    """What the file of these images says; `loaded` is how the model was named and loaded, where that is known,
    `scale` how many times as large as drawn they are."""
    return {
        "format": FORMAT,
        "model": model,
        "loaded": dict(loaded or {}),
        "spec": spec,
        "exact": exact,
        **{name: settings.get(name) for name in _AGAIN},
        **{name: settings[name] for name in _SELDOM if name in settings},
        "grid": list(grid),
        "scale": scale,
        "pictures": list(pictures),
        "environment": dict(environment),
    }


def of_result(result: Any, row: int) -> Made:
    """What the file of one image of a ResultData says."""
    return about(
        model=result.model,
        spec=result.spec,
        exact=result.exact,
        settings=result.settings,
        environment=result.environment,
        pictures=[made_by(result)[row]],
    )


def png(picture: Image.Image, record: Made | None = None) -> bytes:
    """A PNG file, with what it says of itself."""
    info = PngInfo()
    if record is not None:
        info.add_itxt("Software", f"pardec {record['environment'].get('pardec', '')}".strip())
        shown = dict.fromkeys(str(one.get("caption", one.get("class", ""))) for one in record["pictures"])
        info.add_itxt("Description", "\n".join(text for text in shown if text))
        info.add_itxt(KEY, json.dumps(record, ensure_ascii=False))
    held = BytesIO()
    picture.save(held, "PNG", pnginfo=info)
    return held.getvalue()


def opened(file: Path | str | BytesIO) -> Image.Image:
    """A PNG file, whose pixels are not read yet; as Pillow opens it, but refused if it is no PNG or makes too many.

    Raises:
        OSError, SyntaxError: it is no PNG file, or a torn one.
        ValueError: an image of more than `PIXELS`, which a small file can hold.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            picture = Image.open(file, formats=["PNG"])
        except Image.DecompressionBombError:
            raise ValueError(f"it has more than {PIXELS} pixels") from None
    if picture.width * picture.height > PIXELS:
        picture.close()
        raise ValueError(f"it has more than {PIXELS} pixels, {picture.width} by {picture.height}")
    return picture


def read(file: Path | str) -> Made:
    """What a PNG file that pardec wrote says of itself.

    Raises:
        PictureError: the file cannot be read, is no PNG, or says nothing that pardec understands.
    """
    hint = "name a PNG file that pardec image wrote"
    try:
        with opened(file) as picture:
            text = picture.text.get(KEY) if isinstance(picture, PngImageFile) else None
        if text is None:
            raise PictureError(f"{file} does not say how pardec made it", hint=hint)
        record = parse(text)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise PictureError(f"{file} says how it was made in a form that this version does not know", hint=hint)
        return record
    except PictureError:
        raise
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:  # a torn PNG is a SyntaxError to Pillow
        reason = getattr(error, "strerror", None) or (
            str(error) if "pixels" in str(error) else "it is no whole PNG file"
        )
        raise PictureError(f"cannot read {file}: {reason}", hint=hint) from error


def again(record: Made) -> dict[str, Any]:
    """The arguments of `Model.generate` that make the images of a file again, on the same model and decoder.

    Raises:
        PictureError: an image was made from features, which the file does not hold; or it does not say enough.
    """
    try:
        pictures = record["pictures"]
        given: dict[str, Any] = {"sampler": record["spec"], "seed": [one["seed"] for one in pictures]}
        given |= {name: record[name] for name in _AGAIN if record[name] is not None}
        given |= {name: record[name] for name in _SELDOM if record.get(name) is not None}
    except (KeyError, TypeError) as error:
        hint = "read another file that pardec image wrote"
        raise PictureError(f"the file does not say how its images were made: {error!r}", hint=hint) from error
    if all("caption" in one for one in pictures):
        return {"prompt": [one["caption"] for one in pictures], **given}
    if all("class" in one for one in pictures):
        return {"label": [one["class"] for one in pictures], **given}
    raise PictureError("the images were made from prompt_embeds, which their file does not hold", hint="pass them")
