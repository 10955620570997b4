"""One image by several samplers: the image after each forward, the animation, and the gallery's pages."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

import pardec
from pardec.models.errors import SpecError
from pardec.models.files.catalog import embedded_names
from pardec.samplers import registry
from scripts import gallery
from scripts.gallery import MOST, animation, unfolding

CAPTION = "a small red circle left of a large blue square on grey"


def test_an_image_unfolds_forward_by_forward() -> None:
    images, result = unfolding(pardec.load("tiny-llamagen"), CAPTION, sampler="sjd", seed=[3])
    assert len(images) == result.nfe[0]
    assert (np.asarray(images[-1]) == np.asarray(result.images[0])).all()
    blank = [(np.asarray(image) == np.asarray(pardec.pngs.BLANK)).all(-1).sum() for image in images]
    assert blank == sorted(blank, reverse=True)
    assert blank[0] > blank[-1]


def test_what_draws_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="draws no images"):
        unfolding(pardec.load("tiny-llama"), "a red circle")
    with pytest.raises(SpecError, match="only one image can be shown, and 2 are requested"):
        unfolding(pardec.load("tiny-mar"), label=[0, 1], sampler="mar:steps=2")


def test_columns_advance_alike_and_those_that_end_first_wait() -> None:
    columns = [
        ("slow", [Image.new("RGB", (8, 8), (step, 0, 0)) for step in range(100)]),
        ("fast", [Image.new("RGB", (8, 8), (0, 0, 200))] * 3),
    ]
    shown = Image.open(BytesIO(animation(columns)))
    assert shown.format == "GIF"
    assert MOST // 2 < shown.n_frames <= MOST + 2
    assert shown.size[0] > 2 * 8 * 3


@pytest.mark.parametrize("page", gallery.PAGES, ids=lambda page: page.model)
def test_the_gallery_has_a_page_for_each_model(page: gallery.Page) -> None:
    for spec in page.samplers.values():
        registry.resolve(spec, "ar" if page.model == "tiny-llamagen" else None, sampling=True)
    written = (gallery.FOLDER / f"{page.model}.md").read_text()
    drawn = [line for line in written.splitlines() if line.startswith("| ") and "`" in line]
    assert written == gallery.text(page, drawn)
    for kind in ("png", "gif"):
        assert Image.open(gallery.FOLDER / f"{page.model}.{kind}").format == kind.upper()


def test_every_embedded_image_model_that_is_no_draft_has_a_page() -> None:
    names = {name for name in embedded_names() if pardec.load(name).imaging is not None}
    assert {name for name in names if not name.endswith("-draft")} == {page.model for page in gallery.PAGES}
    assert (gallery.FOLDER / "index.md").read_text() == gallery.index()
