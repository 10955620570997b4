"""PNG files of one image or a sheet of images, with metadata that reproduces them.

The text chunk `pardec` of a file is a JSON object: the settings of the run (model, spec, temperature, top_k, top_p,
cfg, cfg_interval, exact, environment), the sheet's rows and columns, and under `pictures`, row by row, the data of
each image (caption or class, seed, nfe, generated; draft_forwards of token maps that a second model refined).
"""

from __future__ import annotations

import json
import math
import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile, PngInfo

from pardec.models.errors import PardecError, SpecError
from pardec.models.files.json_text import parse

KEY = "pardec"
FORMAT = "pardec.picture/1"
MOST = 4096  # images on a sheet, at most
PIXELS = 2**26  # largest number of pixels of an image file
GAP = 2  # pixels between the images of a sheet
BLANK = (234, 238, 242)  # colour of areas without an image
_SETTINGS = ("temperature", "top_k", "top_p", "cfg", "cfg_interval")
_OPTIONAL = ("min_p", "negative_prompt", "size")  # only in files of requests that set them

Metadata = dict[str, Any]


class PictureError(PardecError, ValueError):
    """The file is not an image that pardec wrote."""


# --- sheets ---


def squarest(count: int) -> tuple[int, int]:
    """Rows and columns of the squarest sheet for `count` images, with as few blank positions as that allows.

    >>> squarest(4), squarest(5), squarest(6), squarest(1)
    ((2, 2), (2, 3), (2, 3), (1, 1))
    """
    columns = math.ceil(math.sqrt(count))
    return -(-count // columns), columns


def read_grid(text: str) -> tuple[int, int]:
    """Rows and columns from "2x3".

    Raises:
        SpecError: not two whole numbers, one of them 0, or more images than a sheet can hold.
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*[xX×]\s*(\d{1,9})\s*", text, re.ASCII)
    if match is None:
        raise SpecError(f"a grid must be ROWSxCOLUMNS, got {text!r}", hint="2x3 is two rows of three images")
    rows, columns = int(match[1]), int(match[2])
    if not rows or not columns:
        raise SpecError(f"a grid of {rows}x{columns} holds no image", hint="rows and columns are at least 1")
    if rows * columns > MOST:
        raise SpecError(f"a grid of {rows}x{columns} has more than {MOST} fields", hint="write several files")
    return rows, columns


def check_grid(grid: tuple[int, int], count: int) -> None:
    """Raises SpecError where `grid` cannot hold `count` images."""
    rows, columns = grid
    if rows * columns < count:
        squarest_grid = "x".join(map(str, squarest(count)))
        raise SpecError(
            f"a grid of {rows}x{columns} cannot hold {count} images",
            hint=f"{squarest_grid} is large enough; without a grid, pardec chooses one",
        )


def sheet(
    images: Sequence[Image.Image],
    grid: tuple[int, int],
    *,
    gap: int = GAP,
    ground: tuple[int, int, int] = BLANK,
) -> Image.Image:
    """The images row by row; positions after the last one stay blank. A 1x1 sheet is the image itself."""
    check_grid(grid, len(images))
    rows, columns = grid
    width, height = max(image.width for image in images), max(image.height for image in images)
    canvas = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), ground)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        canvas.paste(image, (column * (width + gap), row * (height + gap)))
    return canvas


# --- metadata ---


def image_metadata(result: Any) -> list[Metadata]:
    """The metadata of each image of a ResultData: caption or class, seed, forwards, number of tokens."""
    return [
        {
            **condition_entry(result.shown[row] if result.shown else None),
            "seed": result.seeds[row],
            "nfe": result.nfe[row],
            "generated": result.generated[row],
            **({"draft_forwards": result.draft_forwards[row]} if result.sides and any(result.draft_forwards) else {}),
        }
        for row in range(len(result.tokens))
    ]


def condition_entry(condition: str | int | None) -> Metadata:
    """A caption or a class as an entry of the metadata."""
    return {"caption": condition} if isinstance(condition, str) else {} if condition is None else {"class": condition}


def file_metadata(
    *,
    model: str,
    spec: str,
    exact: str,
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
    images: Sequence[Metadata],
    grid: tuple[int, int] = (1, 1),
    loaded: Mapping[str, Any] | None = None,
    scale: int = 1,
) -> Metadata:
    """The metadata of a file of these images.

    Args:
        loaded: the model's name and the arguments of its loading, if known.
        scale: the factor by which the images were enlarged.
    """
    return {
        "format": FORMAT,
        "model": model,
        "loaded": dict(loaded or {}),
        "spec": spec,
        "exact": exact,
        **{name: settings.get(name) for name in _SETTINGS},
        **{name: settings[name] for name in _OPTIONAL if name in settings},
        "grid": list(grid),
        "scale": scale,
        "pictures": list(images),
        "environment": dict(environment),
    }


def of_result(result: Any, row: int) -> Metadata:
    """The metadata of a file of one image of a ResultData."""
    return file_metadata(
        model=result.model,
        spec=result.spec,
        exact=result.exact,
        settings=result.settings,
        environment=result.environment,
        images=[image_metadata(result)[row]],
    )


def png(image: Image.Image, record: Metadata | None = None) -> bytes:
    """A PNG file of the image, with its metadata."""
    info = PngInfo()
    if record is not None:
        info.add_itxt("Software", f"pardec {record['environment'].get('pardec', '')}".strip())
        labels = dict.fromkeys(str(one.get("caption", one.get("class", ""))) for one in record["pictures"])
        info.add_itxt("Description", "\n".join(text for text in labels if text))
        info.add_itxt(KEY, json.dumps(record, ensure_ascii=False))
    buffer = BytesIO()
    image.save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def encoded(image: Image.Image, record: Metadata, ending: str) -> bytes:
    """The image as a file with this ending, .png, .jpg, .jpeg or .webp; WebP files are lossless.

    PNG files have their metadata in a chunk that `read` reads, the others in the description of Exif.

    Raises:
        PictureError: the metadata, or the image's sides, are too large for the format.
    """
    if ending == ".png":
        return png(image, record)
    exif, buffer = Image.Exif(), BytesIO()
    exif[ExifTags.Base.ImageDescription] = json.dumps(record)
    exif[ExifTags.Base.Software] = "pardec"
    try:
        if ending == ".webp":
            image.save(buffer, "WEBP", lossless=True, exif=exif)
        else:
            image.convert("RGB").save(buffer, "JPEG", quality=95, subsampling=0, exif=exif)
    except (ValueError, OSError, struct.error) as error:
        raise PictureError(f"the images do not fit in a {ending} file: {error}", hint="name a .png file") from error
    return buffer.getvalue()


def opened(file: Path | str | BytesIO) -> Image.Image:
    """A PNG file opened by Pillow, its pixels not read yet; other formats and too large images are refused.

    Raises:
        OSError, SyntaxError: it is no PNG file, or an incomplete one.
        ValueError: the image has more than `PIXELS` pixels, which even a small file can have.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(file, formats=["PNG"])
        except Image.DecompressionBombError:
            raise ValueError(f"it has more than {PIXELS} pixels") from None
    if image.width * image.height > PIXELS:
        image.close()
        raise ValueError(f"it has more than {PIXELS} pixels, {image.width} by {image.height}")
    return image


def read(file: Path | str) -> Metadata:
    """The metadata of a PNG file that pardec wrote.

    Raises:
        PictureError: the file cannot be read, is no PNG, or has no metadata that pardec understands.
    """
    hint = "name a PNG file that pardec image wrote"
    try:
        with opened(file) as image:
            text = image.text.get(KEY) if isinstance(image, PngImageFile) else None
        if text is None:
            raise PictureError(f"{file} has no metadata of pardec", hint=hint)
        record = parse(text)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise PictureError(f"the metadata of {file} has a format that this version does not know", hint=hint)
        return record
    except PictureError:
        raise
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:  # SyntaxError: an incomplete PNG
        reason = getattr(error, "strerror", None) or (
            str(error) if "pixels" in str(error) else "it is no complete PNG file"
        )
        raise PictureError(f"cannot read {file}: {reason}", hint=hint) from error


def generate_arguments(record: Metadata) -> dict[str, Any]:
    """The arguments of `Model.generate` that reproduce the images of a file with the same model and decoder.

    Raises:
        PictureError: the metadata is incomplete, or the images have embeddings for prompts, which no file contains.
    """
    try:
        entries = record["pictures"]
        arguments: dict[str, Any] = {"sampler": record["spec"], "seed": [one["seed"] for one in entries]}
        arguments |= {name: record[name] for name in _SETTINGS if record[name] is not None}
        arguments |= {name: record[name] for name in _OPTIONAL if record.get(name) is not None}
    except (KeyError, TypeError) as error:
        hint = "read another file that pardec image wrote"
        raise PictureError(f"the metadata of the file is incomplete: {error!r}", hint=hint) from error
    if all("caption" in one for one in entries):
        return {"prompt": [one["caption"] for one in entries], **arguments}
    if all("class" in one for one in entries):
        return {"label": [one["class"] for one in entries], **arguments}
    raise PictureError("the prompts of the images are prompt_embeds, which no file contains", hint="pass them")
