"""Larger images, negative prompts, and captions with capitals and punctuation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pardec
from pardec.images import pngs
from pardec.images.scenes import parse

Cli = Callable[..., tuple[int, str, str]]
CAPTION = "a large green triangle at the top on white"
OTHER = "a small red circle in the middle on black"


@pytest.fixture(scope="module")
def painter() -> pardec.Model:
    return pardec.load("tiny-llamagen", device="cpu")


@pytest.fixture(scope="module")
def pipe(painter: pardec.Model) -> Any:
    return pardec.ImagePipeline(painter)


def render(painter: pardec.Model, **arguments: Any) -> list[int]:
    return painter.generate(CAPTION, temperature=0.0, sampler=arguments.pop("sampler", "sjd"), **arguments).tokens[0]


def test_guidance_is_against_the_negative_prompt(painter: pardec.Model) -> None:
    """With the caption as its own negative prompt, u + cfg (c - u) with u = c is the unguided model."""
    assert render(painter, cfg=3.0, negative_prompt=CAPTION) == render(painter)
    away, plain = render(painter, cfg=3.0, negative_prompt=OTHER), render(painter, cfg=3.0)
    assert away != plain
    assert render(painter, cfg=3.0, negative_prompt="") == plain
    drafted = "model:name=tiny-llamagen-draft,k=4"  # a drafter reads it by itself
    assert render(painter, cfg=3.0, negative_prompt=OTHER, sampler=drafted) == away


def test_the_unconditional_prefix_is_that_of_the_negative_caption(painter: pardec.Model) -> None:
    call = painter.prepare([CAPTION, OTHER], cfg=2.0, negative_prompt=[OTHER, ""])
    negative = painter.prepare([OTHER, OTHER], cfg=2.0)
    prefix, expected = call.request.prefix, negative.request.prefix  # type: ignore[union-attr]
    assert torch.equal(prefix.uncond[0], expected.cond[0])
    assert torch.equal(prefix.uncond[1], expected.uncond[1])
    assert call.settings["negative_prompt"] == [OTHER, ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"negative_prompt": OTHER}, "needs guidance"),
        ({"negative_prompt": OTHER, "cfg": 1.0}, "needs guidance"),
        ({"negative_prompt": [OTHER, OTHER], "cfg": 2.0}, "2 negative prompts for 1 prompts"),
        ({"negative_prompt": 3, "cfg": 2.0}, "negative_prompt must be a caption"),
    ],
)
def test_a_negative_prompt_that_means_nothing_is_refused(
    painter: pardec.Model, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(pardec.SpecError, match=message) as caught:
        painter.prepare(CAPTION, **arguments)
    assert caught.value.hint


def test_models_of_classes_and_of_text_take_none() -> None:
    with pytest.raises(pardec.SpecError, match="negative_prompt is a caption, and tiny-mar draws classes"):
        pardec.load("tiny-mar", device="cpu").prepare(label=3, cfg=2.0, negative_prompt=OTHER)
    with pytest.raises(pardec.SpecError, match="negative_prompt is for image models"):
        pardec.load("tiny-dream", device="cpu").prepare("Tom", negative_prompt=OTHER)


def test_the_pipeline_draws_in_multiples_of_the_models_size(pipe: Any) -> None:
    arguments = {"sampler": "sjd", "temperature": 0.0, "guidance_scale": 3.0, "negative_prompt": OTHER}
    own = np.asarray(pipe(CAPTION, **arguments, height=48, width=48).images[0])
    large = np.asarray(pipe(CAPTION, **arguments, height=96).images[0])
    array = pipe(CAPTION, **arguments, width=144, output_type="np").images[0]
    assert own.shape == (48, 48, 3)
    assert np.array_equal(large, own.repeat(2, 0).repeat(2, 1))
    assert array.shape == (144, 144, 3)
    assert np.array_equal(array[::3, ::3], array[2::3, 2::3])
    assert np.abs(array[::3, ::3] - own / 255).max() < 0.01


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"height": 512, "width": 512}, "height=512, and tiny-llamagen draws images of 48 by 48 pixels"),
        ({"width": 24}, "width=24"),
        ({"width": 96.0}, "width=96.0"),
        ({"height": 48, "width": 96}, "48 by 96 pixels have another aspect ratio"),
    ],
)
def test_other_sizes_are_refused_with_the_possible_ones(pipe: Any, size: dict[str, Any], message: str) -> None:
    with pytest.raises(pardec.SpecError, match=message) as caught:
        pipe(CAPTION, **size)
    assert "96" in str(caught.value.hint)


def test_files_store_larger_images_and_their_scale(cli: Cli, tmp_path: Path) -> None:
    small, large = tmp_path / "small.png", tmp_path / "large.png"
    same = ("image", "tiny-llamagen", "-p", CAPTION, "-s", "sjd", "--cfg", "3", "--negative-prompt", OTHER, "--quiet")
    assert cli(*same, "-o", small, "--each", tmp_path / "each")[0] == 0
    assert cli(*same, "-o", large, "--scale", "4")[0] == 0
    one, four = np.asarray(Image.open(small)), np.asarray(Image.open(large))
    assert np.array_equal(four, one.repeat(4, 0).repeat(4, 1))
    record = pngs.read(large)
    assert (record["scale"], pngs.read(small)["scale"]) == (4, 1)
    assert record["negative_prompt"] == OTHER
    again = pardec.load("tiny-llamagen", device="cpu").generate(**pngs.generate_arguments(record))
    assert np.array_equal(np.asarray(again.images[0]), one)
    code, _, err = cli(*same, "-o", large, "--scale", "0")
    assert (code, "--scale" in err) == (2, True)


@pytest.mark.parametrize(
    "written", ["A large green triangle at the top, on White.", "a LARGE green triangle at the top on white!"]
)
def test_a_caption_is_read_as_people_write_it(painter: pardec.Model, written: str) -> None:
    assert parse(written) == parse(CAPTION)
    call, same = painter.prepare(written), painter.prepare(CAPTION)
    assert torch.equal(call.request.prefix.cond[0], same.request.prefix.cond[0])  # type: ignore[union-attr]


def test_a_word_that_is_not_known_is_named_without_its_full_stop(painter: pardec.Model) -> None:
    with pytest.raises(pardec.SpecError, match="does not know the word 'mauve' in"):
        painter.prepare("a large green triangle at the top on Mauve.")
    with pytest.raises(pardec.SpecError, match="'mauve' is no background"):
        parse("a large green triangle at the top on Mauve.")
