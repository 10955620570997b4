"""`pardec image`: images, their metadata, grids, the preview, refusals, and saved results."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import pardec
from pardec.images import pngs
from pardec.io.saving import ResultError
from pardec.models.errors import ModelError, SpecError
from pardec.models.images.contracts import ImageLayout
from pardec.views import image_view
from pardec.views.blocks import half_blocks, protocol, shrink_to_fit
from pardec.views.html import fragment, page
from pardec.views.order_image import gif, png
from pardec.views.preview import Preview, check_watchable
from pardec.views.unfinished import BLANK, Codes, blank_unknown, unfinished
from tests.pardec.painters import CLASSES, CODES, DEFAULTS, SIDE, painter
from tests.pardec.terminals import Terminal
from tests.script_modules import script_module

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return painter(tmp_path_factory.mktemp("painters") / "classes", "class")


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return painter(tmp_path_factory.mktemp("painters") / "captions", "text")


@pytest.fixture(scope="module")
def model(classes: Path) -> pardec.Model:
    return pardec.load(classes, device="cpu")


@pytest.fixture(scope="module")
def result(model: pardec.Model) -> pardec.Result:
    return model.generate(label=[0, 2, 1], sampler="sjd", temperature=1.0, cfg=2.0, seed=[5, -6, 7])


def same(one: Image.Image, other: Image.Image) -> bool:
    left, right = (np.asarray(each.convert("RGB")).astype(int) for each in (one, other))
    print(left.shape, right.shape, left.shape == right.shape and np.abs(left - right).max())
    return bool(np.array_equal(left, right))


# --- the command ---


def test_a_file_says_how_to_make_its_pictures_again(cli: Cli, classes: Path, tmp_path: Path) -> None:
    out, each = tmp_path / "deep" / "out.png", tmp_path / "each"
    code, told, err = cli(
        "image", classes, "--class", 2, "--class", 0, "--num-images", 2, "-s", "sjd", "-o", out, "--each", each,
        "--json",
    )  # fmt: skip
    assert (code, err.splitlines()[-1].startswith("4 images, 64 tokens in ")) == (0, True), err
    held, said = json.loads(told), pngs.read(out)
    assert said["spec"].startswith("sjd:window=")
    assert {name: said[name] for name in DEFAULTS} == DEFAULTS  # the checkpoint's own
    assert (said["top_p"], said["environment"]["pardec"], said["model"]) == (None, pardec.__version__, "classes")
    assert said["loaded"] == {"name": str(classes)}
    assert [one["class"] for one in said["pictures"]] == [2, 2, 0, 0]
    assert len({one["seed"] for one in said["pictures"]}) == 4
    assert [{**one, "file": None} for one in said["pictures"]] == [{**one, "file": None} for one in held["pictures"]]
    assert (held["grid"], held["files"]["grid"]) == ([2, 2], str(out))
    assert held["timing"]["forwards"] == sum(one["nfe"] for one in held["pictures"])

    again = pardec.load(said["loaded"]["name"], device="cpu").generate(**pngs.generate_arguments(said))
    assert same(Image.open(out), pngs.sheet(again.images, (2, 2)))
    assert again.nfe == [one["nfe"] for one in said["pictures"]]
    for at, one in enumerate(held["pictures"]):  # and each alone, through the command that its file asks for
        alone = pngs.read(one["file"])
        assert alone["pictures"] == [said["pictures"][at]]
        given = alone["pictures"][0]
        if at in (1, 2):
            code, _, err = cli(
                "image", classes, "--label", given["class"], "--seeds", given["seed"], "-s", alone["spec"],
                "-o", tmp_path / "one.png", "--quiet",
            )  # fmt: skip
            assert (code, err) == (0, "")
            assert same(Image.open(tmp_path / "one.png"), Image.open(one["file"]))
            assert same(Image.open(one["file"]), again.images[at])
    assert len({again.images[at].tobytes() for at in range(4)}) > 1


def test_captions_come_from_options_and_files_and_a_batch_is_its_rows(cli: Cli, captions: Path, tmp_path: Path) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text('{"prompt": "a small red circle on grey", "id": 7}\n"ein blauer Kreis: 蓝色"\n')
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    shape = ("--cfg", 3, "--temperature", 0.7, "--top-k", 9, "--top-p", 0.8, "--cfg-interval", 5, "--seed", 4)
    code, out, err = cli("image", captions, "--prompts", file, *shape, "-o", one, "--save", tmp_path / "run")
    assert (code, out) == (0, ""), err
    texts = ["a small red circle on grey", "ein blauer Kreis: 蓝色"]
    said = pngs.read(one)
    assert [each["caption"] for each in said["pictures"]] == texts
    asked = {"cfg": 3.0, "temperature": 0.7, "top_k": 9, "top_p": 0.8, "cfg_interval": 5}
    assert {name: said[name] for name in asked} == asked
    flags = [flag for text in texts for flag in ("-p", text)]
    assert cli("image", captions, *flags, *shape, "-o", other, "--batch-size", 1, "--quiet") == (0, "", "")
    assert same(Image.open(one), Image.open(other))
    loaded = pardec.Result.load(tmp_path / "run")
    assert loaded.shown == texts
    assert loaded.images is not None
    assert same(pngs.sheet(loaded.images, (1, 2)), Image.open(one))


def test_a_grid_is_filled_and_blank_behind_the_last_picture(cli: Cli, classes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    assert cli("image", classes, "--class", 1, "--grid", "2x3", "-o", out, "--quiet")[0] == 0
    assert len(pngs.read(out)["pictures"]) == 6
    few = ("--class", 1, "--num-images", 2, "--grid", "2x2", "-o", out, "--quiet")
    assert cli("image", classes, *few)[0] == 0
    pixels = np.asarray(Image.open(out))
    side = (pixels.shape[0] - pngs.GAP) // 2
    assert (pixels[side + pngs.GAP :] == pngs.BLANK).all()
    assert not (pixels[:side, side + pngs.GAP :] == pngs.BLANK).all(2).any()


REFUSED: list[tuple[str, list[str], str, str]] = [
    ("no place", ["--class", "1"], "no output is named", "-o out.png"),
    ("no terminal", ["--class", "1", "--watch"], "stderr is not a terminal", "leave --watch out"),
    ("nothing to draw", ["-o", "OUT"], "no caption or class", "--class N"),
    ("an empty caption", ["-p", " ", "-o", "OUT"], "caption 0 is empty", "describe the image"),
    ("both kinds", ["-p", "a", "--class", "1", "-o", "OUT"], "captions and classes", "--class"),
    ("captions for classes", ["-p", "a", "-o", "OUT"], "cannot read captions", f"0..{CLASSES - 1}"),
    ("a class out of range", ["--class", "3", "-o", "OUT"], "label 3 is not a class", f"0..{CLASSES - 1}"),
    ("a negative class", ["--class", "-1", "-o", "OUT"], "label -1 is not a class", f"0..{CLASSES - 1}"),
    ("a malformed grid", ["--class", "1", "--grid", "2by2", "-o", "OUT"], "a grid must be ROWSxCOLUMNS", "2x3"),
    ("a grid of none", ["--class", "1", "--grid", "0x2", "-o", "OUT"], "0x2 holds no image", "at least 1"),
    ("a grid too small", ["--class", "1", "--num-images", "3", "--grid", "1x2", "-o", "OUT"], "cannot hold 3", "2x2"),
    ("a grid too large", ["--class", "1", "--grid", "999x999", "-o", "OUT"], "more than 4096 fields", "several"),
    ("seeds in words", ["--class", "1", "--seeds", "a,b", "-o", "OUT"], "takes whole numbers", "--seeds 5,12"),
    ("too many seeds", ["--class", "1", "--seeds", "1,2", "-o", "OUT"], "2 seeds for 1 image", "one seed per image"),
    ("two kinds of seeds", ["--class", "1", "--seeds", "1", "--seed", "2", "-o", "OUT"], "--seed and", "--seed 0"),
    ("another format", ["--class", "1", "-o", "out.tiff"], "images must be PNG, JPEG or WebP files", ".png"),
    ("another animation", ["--class", "1", "--gif", "out.png"], "an animation must be a GIF file", ".gif"),
    ("a sampler of text", ["--class", "1", "-s", "threshold", "-o", "OUT"], "for masked models", "pardec list"),
    ("a misspelt sampler", ["--class", "1", "-s", "sdj", "-o", "OUT"], "unknown sampler 'sdj'", "pardec list"),
    ("a negative temperature", ["--class", "1", "--temperature", "-1", "-o", "OUT"], "at least 0", "--temperature 0"),
    ("a file for a folder", ["--class", "1", "-o", "FILE/out.png"], "cannot write", "another path"),
    ("a run too long to save", ["--class", "1", "--num-images", "9", "--save", "RUN"], "do not fit in", "batch-size"),
]


@pytest.mark.parametrize("given", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_before_the_first_forward(
    cli: Cli, classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: pardec.Model, given: Any
) -> None:
    arguments, said, hint = given
    (tmp_path / "file").write_text("")
    places = {"OUT": tmp_path / "out.png", "FILE/out.png": tmp_path / "file" / "out.png", "RUN": tmp_path / "run"}
    monkeypatch.setattr("pardec.samplers.speculative.loop.decode", lambda *_, **__: pytest.fail("a forward was made"))
    monkeypatch.setattr("pardec.api.load", lambda *_, **__: model)
    code, out, err = cli("image", classes, *(places.get(argument, argument) for argument in arguments), "--quiet")
    lines = err.splitlines()
    assert (code, out, len(lines)) == (2, "", 2), err
    assert said in lines[0]
    assert hint in lines[1]


def test_what_a_model_cannot_do_is_said_before_the_first_forward(
    cli: Cli, captions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("-o", tmp_path / "out.png", "--quiet")
    monkeypatch.setattr("pardec.samplers.speculative.loop.decode", lambda *_, **__: pytest.fail("a forward was made"))
    bare = painter(tmp_path / "bare", "class", tokenizer=None)
    code, _, err = cli("image", bare, "--class", 1, *out)
    assert (code, "bare has no image tokenizer" in err, "--decoder FILE" in err) == (1, True, True)
    other = painter(tmp_path / "other", "class", tokenizer=CODES * 2)
    code, _, err = cli("image", bare, "--class", 1, "--decoder", other / "vq.safetensors", *out)
    assert (code, f"bare has {CODES} image tokens, and its decoder has a codebook of {2 * CODES}" in err) == (1, True)
    code, _, err = cli("image", captions, "--class", 1, *out)
    assert (code, "draws captions and has no classes" in err, '-p "..."' in err) == (2, True, True)
    code, _, err = cli("image", "tiny-llama", "-p", "a", *out)
    assert (code, "tiny-llama is a text model" in err, "pardec generate tiny-llama" in err) == (2, True, True)
    code, _, err = cli("generate", captions, "-p", "a")
    assert (code, "is an image model" in err, "pardec image" in err) == (2, True, True)


def test_other_formats_have_the_same_pixels_and_record(cli: Cli, classes: Path, tmp_path: Path) -> None:
    command = ("image", classes, "--class", 1, "--class", 2, "--seed", 3, "--scale", 4, "--device", "cpu", "--quiet")
    for name in ("a.png", "a.webp", "a.jpg"):
        code, _, err = cli(*command, "-o", tmp_path / name, "--gif", tmp_path / "a.gif")
        assert code == 0, err
    record = pngs.read(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as plain:
        for name, form in (("a.webp", "WEBP"), ("a.jpg", "JPEG")):
            with Image.open(tmp_path / name) as other:
                assert other.format == form
                assert json.loads(other.getexif()[0x010E]) == record
                near = np.abs(np.asarray(plain).astype(int) - np.asarray(other.convert("RGB")).astype(int))
                assert near.max() == 0 if form == "WEBP" else near.mean() < 8
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.format == "GIF"
        assert animation.n_frames > 2  # type: ignore[attr-defined]
    code, _, err = cli(*command, "--gif", tmp_path / "b.gif", "--batch-size", 1)
    assert (code, (tmp_path / "b.gif").exists()) == (2, False)
    assert "one batch" in err


def test_a_decoder_may_lie_elsewhere(cli: Cli, classes: Path, tmp_path: Path) -> None:
    bare = painter(tmp_path / "bare", "class", tokenizer=None)
    shape = ("--class", 1, "--quiet")
    assert cli("image", bare, *shape, "--decoder", classes / "vq.safetensors", "-o", tmp_path / "a.png")[0] == 0
    assert cli("image", classes, *shape, "-o", tmp_path / "b.png")[0] == 0
    assert same(Image.open(tmp_path / "a.png"), Image.open(tmp_path / "b.png"))
    assert pngs.read(tmp_path / "a.png")["loaded"]["decoder"] == str(classes / "vq.safetensors")
    imaging = pardec.load(bare, device="cpu").language_model.imaging
    assert imaging is not None
    with pytest.raises(ModelError, match="has no image tokenizer"):
        unfinished(imaging, np.zeros((1, SIDE**2), dtype=np.int64))


def test_an_interrupted_run_keeps_what_is_finished(
    cli: Cli, classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = pardec.Model.run, []

    def stopped(self: pardec.Model, call: Any, **given: Any) -> Any:
        seen.append(call)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(self, call, **given)

    monkeypatch.setattr(pardec.Model, "run", stopped)
    each = tmp_path / "each"
    code, _, err = cli("image", classes, "--class", 1, "--num-images", 3, "--batch-size", 1, "--each", each, "--quiet")
    assert (code, err) == (130, f"interrupted: 1 of 3 images are finished, in {each}\n")
    assert [file.name for file in each.iterdir()] == ["0.png"]


# --- files and sheets ---


def test_the_squarest_sheet_has_the_fewest_blank_fields() -> None:
    for count in range(1, 40):
        rows, columns = pngs.squarest(count)
        assert rows * columns >= count
        assert 0 <= columns - rows <= 1
        assert (rows - 1) * columns < count


@pytest.mark.parametrize("text", ["", "2", "x", "2x", "-1x2", "2x2x2", "1.5x2", "0x0", "2x0", "99999x99999", "٢x٢"])
def test_an_impossible_grid_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        pngs.read_grid(text)
    assert caught.value.hint


def test_what_is_no_picture_of_ours_is_refused(tmp_path: Path) -> None:
    made = Image.new("RGB", (4, 4))
    made.save(tmp_path / "plain.png")
    made.save(tmp_path / "plain.gif")
    (tmp_path / "torn.png").write_bytes((tmp_path / "plain.png").read_bytes()[:40])
    (tmp_path / "other.png").write_bytes(pngs.png(made, {"format": "x", "environment": {}, "pictures": []}))
    for name in ("plain.png", "plain.gif", "torn.png", "other.png", "missing.png"):
        with pytest.raises(pngs.PictureError) as caught:
            pngs.read(tmp_path / name)
        assert caught.value.hint


def test_features_are_not_in_a_file(captions: Path) -> None:
    import torch

    made = pardec.load(captions, device="cpu").generate(prompt_embeds=torch.ones(1, 2, 8))
    said = pngs.of_result(made, 0)
    assert made.shown == [None]
    assert "caption" not in said["pictures"][0]
    with pytest.raises(pngs.PictureError, match="prompt_embeds"):
        pngs.generate_arguments(said)


# --- results ---


@pytest.mark.parametrize("name", ["run", "run.json"])
def test_pictures_are_saved_with_a_result(result: pardec.Result, tmp_path: Path, name: str) -> None:
    loaded = pardec.Result.load(result.save(tmp_path / name))
    assert all(same(one, other) for one, other in zip(loaded.images, result.images, strict=True))
    assert (loaded.shown, loaded.grid, loaded.text, loaded.seeds) == ([0, 2, 1], (SIDE, SIDE), None, [5, -6, 7])
    again = pardec.Result.load(loaded.save(tmp_path / f"again-{name}"))
    assert again.images is not None
    if name == "run":
        said = pngs.read(tmp_path / "run" / "images" / "1.png")
        assert said["pictures"] == [{"class": 2, "seed": -6, "nfe": result.nfe[1], "generated": SIDE**2}]


def test_missing_and_torn_pictures_are_refused(result: pardec.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "run.json")
    held = json.loads((tmp_path / "run.json").read_text())
    torn = base64.b64encode(base64.b64decode(held["images"][0])[:60]).decode()
    for images in ([], [torn, *held["images"][1:]], ["?", *held["images"][1:]]):
        (tmp_path / "run.json").write_text(json.dumps({**held, "images": images}))
        with pytest.raises(ResultError):
            pardec.Result.load(tmp_path / "run.json")
    result.save(tmp_path / "run")
    (tmp_path / "run" / "images" / "2.png").unlink()
    with pytest.raises(ResultError, match="cannot read"):
        pardec.Result.load(tmp_path / "run")


def test_the_map_counts_what_each_forward_gained(result: pardec.Result) -> None:
    for row, accepted in enumerate(result.trace.accepted):
        counts, when = image_view.commit_counts(result, row), image_view.steps(result, row)
        for number, many in enumerate(accepted):
            here = counts[when == number]
            assert (here == len(here)).all()
            assert len(here) in (many, many + 1)  # the last forward's next token may have no room
        assert counts.size == SIDE**2
        assert (counts > 0).all()
    assert image_view.max_count(result) > 1
    shown = np.asarray(image_view.heatmap(np.array([[0, 1], [2, 3]]), 3, (4, 4)))
    assert tuple(shown[0, 0]) == BLANK
    assert len({tuple(shown[at]) for at in ((0, 0), (0, 3), (3, 0), (3, 3))}) == 4


def test_views_show_pictures(result: pardec.Result, cli: Cli, tmp_path: Path) -> None:
    text = page(result)
    assert not re.search(r"https?://|src=|@import|<link", text)
    held = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert [one["title"] for one in held["pictures"]] == ["class 0", "class 2", "class 1"]
    assert [one["steps"] for one in held["pictures"]] == [
        image_view.steps(result, row).ravel().tolist() for row in range(3)
    ]
    assert held["most"] == image_view.max_count(result)
    data = base64.b64decode(held["pictures"][1]["source"].partition(",")[2])
    assert same(Image.open(io.BytesIO(data)), result.images[1])
    assert result._repr_html_() == fragment(result)
    assert fragment(result).count("<img") == 6
    result.save(tmp_path / "run")
    code, _, _ = cli("view", tmp_path / "run", "--html", tmp_path / "a.html", "--png", tmp_path / "a.png")
    assert code == 0
    assert (tmp_path / "a.html").read_text() == text
    assert "class 2 | seed -6" in cli("view", tmp_path / "run")[1]
    assert repr(result).startswith("<Result 0 and 2 more: sjd")


def test_an_animation_shows_what_each_forward_knew(result: pardec.Result) -> None:
    film = Image.open(io.BytesIO(gif(result)))
    last = max(int(image_view.steps(result, row).max()) for row in range(3))
    assert film.n_frames == last + 2
    side = -(-image_view.MIN_HEIGHT // result.images[0].height) * result.images[0].height
    top, cell = image_view.MARGIN + image_view.LINE, side // SIDE
    when = image_view.steps(result, 0)
    for frame in range(last + 1):  # the last frame is the whole image, whose colours a palette may move
        film.seek(frame)
        pixels = np.asarray(film.convert("RGB")).astype(int)[
            top : top + side, image_view.MARGIN : image_view.MARGIN + side
        ]
        middle = pixels[cell // 2 :: cell, cell // 2 :: cell]
        blank = (np.abs(middle - BLANK) < 8).all(2)
        assert np.array_equal(blank, when >= frame)
    assert Image.open(io.BytesIO(png(result))).width > side


def test_a_picture_model_streams_without_text(model: pardec.Model) -> None:
    seen = Codes(ImageLayout(SIDE, SIDE))
    for event in model.stream(label=[0, 1, 2], sampler="sjd", temperature=1.0, seed=3):
        before = seen.known
        seen(event)
        assert getattr(event, "text", None) is None
        assert seen.known >= before
        if isinstance(event, pardec.Step):
            assert int(seen.fresh.sum()) == int(event.committed.sum()) == int(event.gained.sum())
    assert seen.codes.tolist() == model.generate(label=[0, 1, 2], sampler="sjd", temperature=1.0, seed=3).tokens


# --- the preview ---


def watched(
    model: pardec.Model,
    stream: io.StringIO,
    environment: dict[str, str],
    labels: tuple[int, ...] = (0, 1),
    **given: Any,
) -> str:
    imaging = model.language_model.imaging
    assert imaging is not None
    with Preview(imaging, len(labels), stream, environment=environment, **given) as preview:
        for event in model.stream(label=labels, temperature=1.0, sampler="sjd"):
            preview(event)
    return stream.getvalue()


def test_a_log_gets_plain_lines_and_not_too_many(model: pardec.Model) -> None:
    text = watched(model, io.StringIO(), {}, every=0.0)
    assert "\x1b" not in text
    assert "\r" not in text
    assert re.match(r"2 of 32 tokens, 1 forward, (\d+ min )?\d+ s left\n", text)
    assert text.endswith(" forwards\n")
    assert watched(model, io.StringIO(), {}) == ""


def test_a_terminal_is_drawn_on_in_half_blocks(
    model: pardec.Model, monkeypatch: pytest.MonkeyPatch, colours: None
) -> None:
    decoded: list[int] = []
    monkeypatch.setattr("pardec.views.preview.unfinished", lambda *given: decoded.append(1) or unfinished(*given))
    text = watched(model, Terminal(), {}, (1,))
    assert "16 of 16 tokens" in text
    made = model.generate(label=1, temperature=1.0, sampler="sjd")
    assert 1 <= len(decoded) < made.nfe[0]  # not at every event
    whole = io.StringIO()
    console = Console(file=whole, force_terminal=True, color_system="truecolor", highlight=False)
    console.print(half_blocks(made.images[0]), end="")
    assert whole.getvalue().strip() in text  # at the end, all of it
    assert ";".join(map(str, BLANK)) not in whole.getvalue()


def test_every_step_can_be_drawn(model: pardec.Model, monkeypatch: pytest.MonkeyPatch, colours: None) -> None:
    decoded: list[int] = []
    monkeypatch.setattr("pardec.views.preview.unfinished", lambda *given: decoded.append(1) or unfinished(*given))
    watched(model, Terminal(), {}, (1,), each_step=True)
    assert len(decoded) == model.generate(label=1, temperature=1.0, sampler="sjd").nfe[0] + 1  # and the end


@pytest.mark.parametrize(
    ("stream", "variables", "reason"),
    [
        (io.StringIO(), {}, "stderr is not a terminal"),
        (Terminal(), {"TERM": "dumb"}, "cannot move its cursor"),
        (Terminal(), {"NO_COLOR": "1"}, "too few colours"),
    ],
)
def test_where_nothing_can_be_watched_the_reason_is_named(
    stream: io.StringIO, variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, colours: None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SpecError, match=reason):
        check_watchable(stream, {})


@pytest.mark.parametrize(
    ("environment", "start"), [({"KITTY_WINDOW_ID": "1"}, "\x1b_G"), ({"TERM_PROGRAM": "iTerm.app"}, "\x1b]1337;File=")]
)
def test_a_terminal_with_images_gets_images(
    model: pardec.Model, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], start: str
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    text = watched(model, Terminal(), environment)
    last = text.rpartition(start)[2] if environment.get("TERM_PROGRAM") else text[text.rindex("a=T") :]
    data = re.search(r"[;:]([A-Za-z0-9+/=]{40,})(\x1b\\|\a)", last)
    shown = Image.open(io.BytesIO(base64.b64decode(data[1])))
    made = model.generate(label=[0, 1], temperature=1.0, sampler="sjd").images
    assert made is not None
    assert same(shown, pngs.sheet(made, (1, 2)))
    assert text.endswith("\n")


def test_a_plain_terminal_gets_one_line_written_over(model: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = watched(model, Terminal(), {})
    assert "▀" not in text
    assert text.count("\n") == 1
    assert text.count("\r") > 2


def test_the_protocol_follows_the_terminal() -> None:
    assert protocol({"TERM": "xterm-kitty"}) == "kitty"
    assert protocol({"TERM": "screen", "KITTY_WINDOW_ID": "1"}) == "blocks"
    assert protocol({"TMUX": "x", "TERM_PROGRAM": "iTerm.app"}) == "blocks"
    assert protocol({"LC_TERMINAL": "iTerm2"}) == "iterm"
    assert protocol({"TERM": "xterm-256color"}) == "blocks"


def test_half_blocks_hold_every_pixel() -> None:
    made = Image.fromarray(np.arange(3 * 5 * 3, dtype=np.uint8).reshape(5, 3, 3) * 5)
    text = half_blocks(made)
    assert text.plain.splitlines() == ["▀▀▀"] * 3
    colours = [(span.style.color, span.style.bgcolor) for span in text.spans]  # type: ignore[union-attr]
    pixels = [tuple(map(int, made.getpixel((at, row)))) for row in range(5) for at in range(3)]  # type: ignore[arg-type]
    uppers = [tuple(upper.triplet) for upper, _ in colours]  # type: ignore[union-attr, arg-type]
    assert uppers == pixels[:3] + pixels[6:9] + pixels[12:]
    assert [lower is None for _, lower in colours] == [False] * 6 + [True] * 3
    assert shrink_to_fit(made, 100, 100) is made
    assert shrink_to_fit(Image.new("RGB", (256, 256)), 80, 24).size == (48, 48)


def test_cells_that_are_not_known_are_blank() -> None:
    known = np.array([[True, False, True], [False, True, False]])
    shown = np.asarray(blank_unknown(Image.new("RGB", (7, 4), (1, 2, 3)), known))
    for y in range(4):
        for x in range(7):
            assert (tuple(shown[y, x]) == BLANK) != known[y * 2 // 4, x * 3 // 7]


def test_the_script_compares_samplers(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_module("scripts/generate_image.py")
    arguments = ["--model", str(classes), "--class", "1", "--images", "2", "--sampler", "sjd:window=4"]
    monkeypatch.setattr(sys, "argv", ["generate_image.py", *arguments, "--out", str(tmp_path)])
    assert script.main() == 0
    assert "tokens per forward" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.png"))) == 1
    monkeypatch.setattr(sys, "argv", ["generate_image.py", *arguments, "--class", "9"])
    assert script.main() == 1
    assert "label 9" in capsys.readouterr().err


def test_defaults_give_way(classes: Path) -> None:
    from pardec.requests.images import with_defaults

    imaging: Any = SimpleNamespace(defaults={"top_k": 0, "cfg": 4.0, "do_sample": True})
    assert with_defaults(imaging, {"seed": 1}) == {"temperature": 1.0, "cfg": 4.0, "seed": 1}
    assert with_defaults(imaging, {"cfg": 1.5, "temperature": 0.0}) == {"temperature": 0.0, "cfg": 1.5}
    prophet = with_defaults(imaging, {"sampler": "preset:prophet"})
    from pardec.samplers.registry import preset

    assert not set(prophet) & set(preset("prophet").arguments)
