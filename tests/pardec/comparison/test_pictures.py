"""Comparisons of images: scores from pixels, distances, the checkpoint's own settings, image grids in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pardec
from pardec.comparison.report import page
from pardec.models.errors import SpecError
from tests.pardec.painters import DEFAULTS, painter

from .conftest import keys


@pytest.fixture(scope="module")
def drawer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose images have the size that the detector reads: 12x12 cells of 4 pixels."""
    return painter(tmp_path_factory.mktemp("drawer") / "model", "text", side=12, levels=3)


def test_pictures_are_scored_and_shown_side_by_side(drawer: Path, tmp_path: Path) -> None:
    arguments = {"limit": 3, "batch_size": 2, "replays": 2, "device": "cpu"}
    samplers = ["sequential", "sjd:window=24,init=left", "sjd:window=24,init=left+lantern:k=4,mode=reference"]
    table = pardec.compare(drawer, "captions", samplers, out=tmp_path / "run", **arguments)
    sequential, exact, relaxed = table.rows
    assert sequential["nfe"] == 144
    assert exact["nfe"] < 144
    assert all(row["accuracy"] == 0 and 0 <= row["lenient"] < 1 for row in table.rows)
    assert all(row["distance"] > 0 for row in table.rows)
    assert (exact["exact"], relaxed["exact"]) == ("distribution", "relaxed")
    assert "FID" in table.to_markdown()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {name: config["generate"][name] for name in DEFAULTS} == DEFAULTS
    html = page(table.run)
    assert html.count("data:image/png") >= 2 * 2 * 3  # an image and a map, of two captions, by three samplers
    assert html.count('id="images"') == 1
    assert 'id="decode"' not in html
    again = pardec.compare(drawer, "captions", samplers, out=tmp_path / "run", resume=True, **arguments)
    assert again.rows == table.rows
    assert len(keys(tmp_path / "run")) == 9


def test_what_is_given_goes_before_the_checkpoint_s_own(drawer: Path) -> None:
    table = pardec.compare(
        drawer, "captions", ["sequential", "jacobi:window=24"], limit=1, temperature=0.0, cfg=1.0, device="cpu"
    )
    assert [row["identical"] for row in table.rows] == [1.0, 1.0]


def test_text_and_pictures_are_not_mixed_up(drawer: Path) -> None:
    with pytest.raises(SpecError, match="answers in images and the task 'arithmetic' asks for text"):
        pardec.compare(drawer, "arithmetic", ["sequential"], limit=1)
    with pytest.raises(SpecError, match="answers in text and the task 'captions' asks for images"):
        pardec.compare("tiny-llama", "captions", ["sequential"], limit=1)
