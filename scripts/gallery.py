"""Draws docs/gallery: a page for each embedded image model, with its images, their seeds and an animated decode.

    python scripts/gallery.py [MODEL ...]

Everything is drawn from the seeds shown on the pages. Without a model, all pages are drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pardec  # noqa: E402
from pardec.images import pngs  # noqa: E402
from pardec.images.classes import NAMES  # noqa: E402
from pardec.models.errors import SpecError  # noqa: E402
from pardec.requests.images import with_defaults  # noqa: E402
from pardec.samplers.events import Finished, Step  # noqa: E402
from pardec.views.frames import MARGIN, encode, truncate  # noqa: E402
from pardec.views.unfinished import Codes, unfinished  # noqa: E402

FOLDER = ROOT / "docs" / "gallery"
SCALE, LINE = 3, 14
TITLE_LINE, TITLE_SIZE = 20, 13  # pixels
MOST = 36  # frames, about
COLOURS = 64  # colours of a frame


@dataclass(frozen=True)
class Page:
    """The page of one model: its images, and the samplers that are shown side by side."""

    model: str
    title: str
    text: str
    conditions: tuple[str | int, ...]  # captions or classes, one an image; image i has seed i
    shown: int  # the condition that is drawn side by side
    samplers: dict[str, str]  # by title
    note: str

    @property
    def classes(self) -> bool:
        return isinstance(self.conditions[0], int)


CAPTIONS = (
    "a small red circle left of a large blue square on grey",
    "a large green triangle at the top on white",
    "a large yellow square above a small purple circle on black",
    "a small cyan circle at the bottom right on grey",
    "a large purple circle in the middle on white",
    "a small blue triangle right of a large red triangle on black",
    "a large cyan square at the left on black",
    "a small green square below a large yellow circle on grey",
)
CLASSES = (0, 4, 8, 13, 19, 25, 30, 35)
PAGES = (
    Page(
        "tiny-llamagen",
        "From captions, code by code",
        "An autoregressive model over a grid of 12 by 12 codes, in LlamaGen's format.",
        CAPTIONS,
        0,
        {
            "one code a forward": "sequential",
            "sjd": "sjd",
            "sjd + lantern": "sjd+lantern:k=32,delta=0.2",
            "zipar": "zipar",
        },
        "`sjd` draws from the distribution of one code a forward; `lantern` and `zipar` trade some of that for fewer "
        "forwards.",
    ),
    Page(
        "tiny-mar",
        "From classes, vector by vector",
        "A masked autoregressive model over a grid of vectors, in MAR's format; a diffusion head draws each vector.",
        CLASSES,
        1,
        {
            "one vector a step": "sequential",
            "mar, 9 steps": "mar:steps=9",
            "seeded_jacobi": "seeded_jacobi:steps=36,window=8",
            "cspd": "cspd:draft=tiny-mar-draft,k=8,steps=18",
        },
        "`mar` draws groups that grow; `seeded_jacobi` guesses groups ahead and keeps what does not change; `cspd` "
        "has a smaller model draft them.",
    ),
    Page(
        "tiny-var",
        "From classes, scale by scale",
        "A transformer over token maps that grow from one code to the whole grid, in VAR's format: each forward adds a "
        "map.",
        CLASSES,
        1,
        {
            "one map a forward": "sequential",
            "code, 4 maps": "code:refiner=tiny-var-draft,steps=4",
            "code, 3 maps": "code:refiner=tiny-var-draft,steps=3",
            "fastvar": "fastvar",
        },
        "`code` has the large model draw the first maps and a small one the rest; `fastvar` leaves settled tokens "
        "out of the last ones.",
    ),
)


def draw(page: Page) -> None:
    """Writes a page and its two images."""
    model = pardec.load(page.model)
    assert model.imaging is not None, "an image model"
    arguments = pardec_defaults(model)
    asked = {"label": list(page.conditions)} if page.classes else {"prompt": list(page.conditions)}
    spec = next(iter(page.samplers.values()))
    result = model.generate(**asked, seed=list(range(len(page.conditions))), **{**arguments, "sampler": spec})
    assert result.images is not None, "a model with a decoder"
    FOLDER.mkdir(exist_ok=True)
    sheet = pngs.sheet([captioned(image, f"seed {seed}") for seed, image in enumerate(result.images)], (2, 4), gap=8)
    (FOLDER / f"{page.model}.png").write_bytes(pngs.png(sheet))
    condition = page.conditions[page.shown]
    one = {"label": [condition]} if page.classes else {"prompt": condition}
    columns = []
    counts = []
    for title, spec in page.samplers.items():
        images, drawn = unfolding(model, **one, sampler=spec, seed=[page.shown])
        columns.append((title, images))
        drafts = f", {drawn.draft_forwards[0]} of the draft model" if drawn.draft_forwards[0] else ""
        counts.append(f"| {title} | `{spec}` | {drawn.nfe[0]}{drafts} |")
    (FOLDER / f"{page.model}.gif").write_bytes(animation(columns))
    (FOLDER / f"{page.model}.md").write_text(text(page, counts), encoding="utf-8")
    print(f"drew {page.model}")


def unfolding(model: pardec.Model, prompt: Any = None, **arguments: Any) -> tuple[list[Image.Image], pardec.Result]:
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
    font, tiles = ImageFont.load_default(TITLE_SIZE), []
    for title, images in columns:
        at = min(step, len(images) - 1)
        image = images[at].resize((images[at].width * scale, images[at].height * scale), Image.Resampling.NEAREST)
        tile = Image.new("RGB", (image.width, image.height + 2 * TITLE_LINE), "white")
        tile.paste(image, (0, TITLE_LINE))
        draw, ending = ImageDraw.Draw(tile), ", finished" if at == len(images) - 1 else ""
        draw.text((0, 2), truncate(title, font, image.width), fill="#24292f", font=font)
        draw.text((0, TITLE_LINE + image.height + 3), f"{at + 1} forwards{ending}", fill="#57606a", font=font)
        tiles.append(tile)
    sheet = pngs.sheet(tiles, (1, len(tiles)), gap=MARGIN, ground=(255, 255, 255))
    framed = Image.new("RGB", (sheet.width + 2 * MARGIN, sheet.height + 2 * MARGIN), "white")
    framed.paste(sheet, (MARGIN, MARGIN))
    return framed.quantize(COLOURS, dither=Image.Dither.NONE)  # noise costs more than it shows


def pardec_defaults(model: pardec.Model) -> dict[str, object]:
    """The checkpoint's own arguments."""
    from pardec.requests.images import with_defaults

    assert model.imaging is not None, "an image model"
    return with_defaults(model.imaging, {})


def captioned(image: Image.Image, caption: str) -> Image.Image:
    """The image, enlarged, over a line of text."""
    image = image.resize((image.width * SCALE, image.height * SCALE), Image.Resampling.NEAREST)
    tile = Image.new("RGB", (image.width, image.height + LINE), "white")
    tile.paste(image)
    ImageDraw.Draw(tile).text((2, image.height + 1), caption, fill="#24292f", font=ImageFont.load_default(11))
    return tile


def text(page: Page, counts: list[str]) -> str:
    """The page in Markdown."""
    names = [f"{NAMES[each]} (class {each})" if isinstance(each, int) else each for each in page.conditions]
    shown = page.conditions[page.shown]
    option = f"--class {shown}" if page.classes else f'-p "{shown}"'
    commands = [
        f"$ pardec image {page.model} {option} --seeds {page.shown} -s {spec} -o out.png"
        for spec in page.samplers.values()
    ]
    lines = [
        f"# {page.title}",
        "",
        f"`{page.model}`: {page.text}",
        "",
        f"![Eight images, with their seeds]({page.model}.png)",
        "",
        *[f"{seed}. {name}" for seed, name in enumerate(names)],
        "",
        "The number of a line is the seed of its image. Row by row, from the left.",
        "",
        "## As it is decoded",
        "",
        f"{names[page.shown][0].upper()}{names[page.shown][1:]}, seed {page.shown}. Every frame is one forward further "
        "for each sampler; what is not known yet is blank.",
        "",
        f"![The same image by {len(page.samplers)} samplers, forward by forward]({page.model}.gif)",
        "",
        "| | sampler | forwards |",
        "|---|---|---|",
        *counts,
        "",
        page.note,
        "",
        "```console",
        *commands,
        "```",
        "",
    ]
    return "\n".join(lines)


def index() -> str:
    """The index page."""
    lines = [
        "# Gallery",
        "",
        "Images by the embedded models, and how each sampler comes to them. `pardec image MODEL ... --watch` shows the "
        "same in a terminal.",
        "",
        *[f"- [{page.title}]({page.model}.md): `{page.model}`" for page in PAGES],
        "",
        "All of it is drawn by `python scripts/gallery.py`, from the seeds that the pages name.",
        "",
        "```{toctree}",
        ":hidden:",
        "",
        *[page.model for page in PAGES],
        "```",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", help="draw only these pages")
    wanted = parser.parse_args().models
    for page in PAGES:
        if not wanted or page.model in wanted:
            draw(page)
    (FOLDER / "index.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
