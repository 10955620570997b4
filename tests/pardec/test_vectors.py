"""Models whose tokens are vectors, through `load`, `generate`, `stream` and saved results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.images import pngs
from pardec.io.saving import ResultError
from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import ModelError, SpecError
from pardec.samplers.continuous import loop as continuous
from pardec.samplers.continuous.contracts import ImageRequest
from pardec.samplers.events import Finished, RowFinished, Sampled
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from pardec.views import image_view
from pardec.views.html import fragment, page
from pardec.views.order_image import gif, png
from pardec.views.terminal import finished
from pardec.views.token_grid import traced_tokens
from tests.pardec.browser import browser
from tests.pardec.vector_painters import CLASSES, SIDE, SIZE, vector_painter

TOKENS = SIDE**2
MAR = "mar:steps=5"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vectors")


@pytest.fixture(scope="module")
def folder(home: Path) -> Path:
    return vector_painter(home / "vectors")


@pytest.fixture(scope="module")
def model(folder: Path) -> pardec.Model:
    return pardec.load(folder, device="cpu")


@pytest.fixture(scope="module")
def result(model: pardec.Model) -> pardec.Result:
    return model.generate(label=[3, -1, 0], sampler=MAR, cfg=2.5, seed=[5, -6, 7])


@pytest.fixture(scope="module")
def speculated(model: pardec.Model, folder: Path) -> pardec.Result:
    """A result drafted by the target itself; drafts were sampled given more known tokens, so only some are accepted."""
    return model.generate(label=[3, 1], sampler=f'cspd:draft="{folder}",k=2,steps=8', seed=[5, 6])


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Asserts equality up to rounding; vectors of random weights are large."""
    return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().mean())))


# --- drawing ---


def test_what_is_drawn_is_what_the_loop_draws(model: pardec.Model, result: pardec.Result) -> None:
    request = ImageRequest((3, -1, 0), Keyed((5, -6, 7)), temperature=1.0, cfg=2.5)
    assert isinstance(model.network, ContinuousModel)
    *_, end = continuous.decode(model.network, resolve(MAR, "continuous"), request)
    assert isinstance(end, Finished)
    assert end.latents is not None
    assert result.latents.dtype == torch.float32
    assert np.array_equal(result.latents.reshape(3, TOKENS, SIZE).numpy(), end.latents)
    for row, picture in enumerate(result.images):
        pixels = model.network.imaging.decode(result.latents[row : row + 1])[0].permute(1, 2, 0)
        expected = (pixels.clamp(-1, 1) + 1) * 127.5
        assert (torch.tensor(np.asarray(picture)) - expected).abs().max() <= 1


def test_a_vector_has_no_id_and_counts(result: pardec.Result) -> None:
    assert (result.tokens, list(result.sequences.shape), result.text) == ([[], [], []], [3, 0], None)
    assert (result.generated, result.nfe, result.forward_rows) == ([TOKENS] * 3, [5] * 3, [10] * 3)
    assert result.tokens_per_forward == TOKENS / 5
    assert (result.acceptance_length, result.acceptance_rate) == (None, None)
    assert (result.shown, result.grid, result.prompts, result.finish) == (
        [3, -1, 0],
        (SIDE, SIDE),
        [0] * 3,
        ["length"] * 3,
    )
    assert result.settings == {"temperature": 1.0, "cfg": 2.5}
    assert set(result.timing.parts) == {"backbone", "head"}
    assert 0 < sum(result.timing.parts.values()) < result.timing.total_s
    assert [len(step.positions) for step in result.trace.steps[0]] == [
        int((result.trace.commit_step[0] == number).sum()) for number in range(5)
    ]
    assert [row["tokens"] for row in result.rows()] == [[], [], []]
    assert "<Result 3 and 2 more" in repr(result)


def test_the_default_temperature_is_one(model: pardec.Model, result: pardec.Result) -> None:
    request: dict[str, Any] = {"label": [3, -1, 0], "sampler": MAR, "cfg": 2.5, "seed": [5, -6, 7]}
    one, zero = (model.generate(**request, temperature=value) for value in (1.0, 0.0))
    assert one.latents is not None
    assert zero.latents is not None
    assert result.latents is not None
    assert torch.equal(one.latents, result.latents)
    assert not close(zero.latents, result.latents)
    assert zero.settings["temperature"] == 0.0
    assert pardec.load("tiny-llama", device="cpu").generate("1", max_new_tokens=1).settings["temperature"] == 0.0


def test_a_row_alone_is_the_row_in_a_batch(model: pardec.Model, result: pardec.Result) -> None:
    alone = model.generate(label=-1, sampler=MAR, cfg=2.5, seed=[-6])
    assert close(alone.latents[0], result.latents[1])
    call = model.prepare(label=[3, -1, 0], sampler=MAR, cfg=2.5, seed=[5, -6, 7]).take([1])
    assert call.seeds == (-6,)
    *_, end = model.run(call)
    assert isinstance(end, Finished)
    taken = model.result(call, end, 1.0).latents
    assert taken is not None
    assert torch.equal(taken, alone.latents)


def test_guidance_of_one_is_none_and_labels_matter(model: pardec.Model) -> None:
    plain = model.generate(label=2, sampler=MAR, seed=[1])
    off = model.generate(label=2, sampler=MAR, seed=[1], cfg=1)
    other = model.generate(label=1, sampler=MAR, seed=[1])
    assert off.forward_rows == plain.forward_rows == [5]
    assert plain.latents is not None
    assert off.latents is not None
    assert other.latents is not None
    assert torch.equal(plain.latents, off.latents)
    assert not close(plain.latents, other.latents)


def test_images_of_each_label_are_consecutive(model: pardec.Model) -> None:
    result = model.generate(label=torch.tensor([4, 0]), num_images=2, sampler=MAR, seed=3)
    assert result.shown == [4, 4, 0, 0]
    assert len(set(result.seeds)) == 4
    again = model.generate(label=4, sampler=MAR, seed=[result.seeds[1]])
    assert close(again.latents[0], result.latents[1])


def test_events_contain_vectors_and_the_callback_gets_them(model: pardec.Model) -> None:
    events: list[Any] = []
    result = model.generate(label=[1, 2], sampler=MAR, seed=[8, 9], callback=events.append)
    steps = [event for event in events if isinstance(event, Sampled)]
    assert len(steps) == 5
    assert np.array_equal(steps[-1].latents.reshape(2, SIDE, SIDE, SIZE), result.latents.numpy())
    streamed = list(model.stream(label=[1, 2], sampler=MAR, seed=[8, 9]))
    assert [type(event) for event in streamed] == [type(event) for event in events]
    assert all(event.text is None for event in streamed if isinstance(event, Sampled | RowFinished))


def test_without_a_sampler_mar_draws(model: pardec.Model) -> None:
    assert model.generate(label=1).spec == (
        "mar:steps=64,guidance=linear,last=map,head=none,head_to=none,order=random,"
        "uncond_every=1,decoder_every=1,head_every=1,warmup=5,margin=15,layer=3"
    )
    assert (model.family, model.tokenizer, pardec.load("tiny-llama", device="cpu").family) == ("continuous", None, "ar")
    assert re.match(r"<Model vectors: mar, on cpu", repr(model))


def test_a_single_file_loads_with_its_autoencoder(folder: Path, tmp_path: Path, result: pardec.Result) -> None:
    lonely = tmp_path / "weights.pth"
    lonely.write_bytes((folder / "checkpoint-last.pth").read_bytes())
    (tmp_path / "args.json").write_text(json.dumps({
        "encoder_num_heads": 2, "decoder_num_heads": 2, "num_sampling_steps": "10",
    }))  # fmt: skip
    named = pardec.load(lonely, device="cpu", decoder=folder / "kl.safetensors")
    again = named.generate(label=[3, -1, 0], sampler=MAR, cfg=2.5, seed=[5, -6, 7])
    assert [one.tobytes() for one in again.images] == [one.tobytes() for one in result.images]
    bare = pardec.load(lonely, device="cpu").generate(label=3, sampler=MAR)
    assert (bare.images, bare.shown) == (None, [3])


# --- refusals ---

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"label": CLASSES}, f"label {CLASSES} is not a class of vectors"),
    ({"label": -2}, "label -2 is not a class of vectors"),
    ({"label": True}, "label True is not a class"),
    ({"label": []}, "the list of classes is empty"),
    ({}, "no class is given"),
    ({"prompt": "a red circle"}, "draws classes and cannot read a prompt"),
    ({"label": 1, "prompt_embeds": torch.ones(1, 2, 3)}, "cannot read prompt_embeds"),
    ({"label": 1, "input_ids": [[1]]}, "input_ids is for text"),
    ({"label": 1, "template": "a"}, "template is for text"),
    ({"label": 1, "stop_ids": []}, "stop_ids is for text"),
    ({"label": 1, "block_length": 4}, "block_length is for text"),
    ({"label": 1, "logits_processor": [print]}, "logits_processor is for text"),
    ({"label": 1, "top_k": 5}, "top_k is for tokens with ids"),
    ({"label": 1, "top_p": 0.5}, "top_p is for tokens with ids"),
    ({"label": 1, "cfg_interval": 5}, "cfg_interval is for tokens with ids"),
    ({"label": 1, "allowed": [1]}, "allowed is for tokens with ids"),
    ({"label": 1, "max_new_tokens": 5}, "got max_new_tokens=5"),
    ({"label": 1, "block_align": "absolute"}, "got block_align=absolute"),
    ({"label": 1, "seed": [1, 2]}, "2 seeds for 1 rows"),
    ({"label": 1, "temperature": -1.0}, "temperature must be at least 0"),
    ({"label": 1, "sampler": "threshold"}, "'threshold' is for masked models, not for models whose tokens are"),
    ({"label": 1, "sampler": "sjd"}, "'sjd' is for autoregressive models, not for models whose tokens are"),
    ({"label": 1, "sampler": "mer"}, "unknown sampler 'mer' .did you mean 'mar'"),
    ({"label": 1, "sampler": "mar:steps=0"}, "steps must be at least 1"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_refused_before_the_first_forward(
    model: pardec.Model, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("pardec.samplers.continuous.loop.decode", lambda *_, **__: pytest.fail("a forward was made"))
    with pytest.raises(SpecError, match=message) as caught:
        model.generate(**arguments)
    assert caught.value.hint or "steps" in message


def test_what_needs_ids_is_refused(model: pardec.Model) -> None:
    for request in (lambda: model.logits(torch.ones(1, 2, dtype=torch.int64)), lambda: model.language_model):
        with pytest.raises(ModelError, match="vectors draws vectors and is not a language model"):
            request()


def test_samplers_of_vectors_are_not_for_ids() -> None:
    llama, dream = (pardec.load(name, device="cpu") for name in ("tiny-llama", "tiny-dream"))
    for text, whom in ((llama, "autoregressive models"), (dream, "masked models")):
        with pytest.raises(SpecError, match=f"'mar' is for models whose tokens are vectors, not for {whom}"):
            text.generate("a", sampler="mar")
        with pytest.raises(SpecError, match="is for models whose tokens are vectors"):
            text.generate("a", sampler=resolve("mar", "continuous"))


def test_more_steps_of_the_head_than_it_was_trained_with_are_refused(model: pardec.Model) -> None:
    with pytest.raises(ModelError):
        model.prepare(label=1, sampler="mar:head=5000")


def test_an_autoencoder_of_another_size_is_refused(home: Path) -> None:
    other = pardec.load(vector_painter(home / "other", channels=2 * SIZE), device="cpu")
    with pytest.raises(ModelError, match=f"has {2 * SIZE} channels, and a token of other has {SIZE} numbers"):
        other.generate(label=1, sampler=MAR)


def test_a_draft_of_another_shape_is_refused(model: pardec.Model, home: Path) -> None:
    wide = vector_painter(home / "wide", side=SIDE + 1)
    with pytest.raises(ModelError, match=f"wide cannot draft for vectors: it has {(SIDE + 1) ** 2} tokens per image"):
        model.generate(label=1, sampler=f'cspd:draft="{wide}"')


# --- drafting ---


def test_results_count_tested_and_accepted_drafts(speculated: pardec.Result) -> None:
    tested, accepted = (sum(map(sum, rows)) for rows in (speculated.trace.drafted, speculated.trace.accepted))
    assert 0 < accepted < tested
    assert speculated.acceptance_rate == accepted / tested
    assert speculated.acceptance_length is None
    assert all(forwards > 0 for forwards in speculated.draft_forwards)
    assert {"backbone", "head", "draft backbone", "draft head"} <= set(speculated.timing.parts)
    assert image_view.acceptance_text(speculated, 0).endswith(" drafts accepted")
    assert image_view.acceptance_text(speculated, 0).split(" of ")[0] == str(sum(speculated.trace.accepted[0]))
    (first, _) = image_view.data(speculated)["pictures"]
    assert (first["drafted"], first["accepted"]) == (speculated.trace.drafted[0], speculated.trace.accepted[0])
    assert "drafts accepted" in fragment(speculated)


def test_the_page_draws_a_bar_for_each_test_of_drafts(speculated: pardec.Result, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(speculated), encoding="utf-8")
    with browser() as show:
        view = show((tmp_path / "page.html").as_uri())
        first = view.locator("article").first
        tested = [(many, taken, at) for at, (many, taken) in enumerate(
            zip(speculated.trace.drafted[0], speculated.trace.accepted[0], strict=True)
        ) if many]  # fmt: skip
        bars = first.locator(".bars i")
        assert [bars.nth(at).get_attribute("title") for at in range(bars.count())] == [
            f"forward {at + 1}: {taken} of {many} drafts accepted" for many, taken, at in tested
        ]
        assert image_view.acceptance_text(speculated, 0) in first.inner_text()
        heights = [bars.nth(at).evaluate("bar => bar.style.height") for at in range(bars.count())]
        assert [float(height.rstrip("%")) for height in heights] == pytest.approx(
            [100 * taken / many for many, taken, _ in tested]
        )
        assert first.locator(".bars i.later").count() == 0
        view.locator("#drawn-slider").fill("0")
        assert first.locator(".bars i.later").count() == len(tested)
        first.locator("canvas").last.hover()
        assert "not known yet" in first.inner_text()
        view.locator("#drawn-slider").fill(str(speculated.nfe[0]))
        first.locator("canvas").last.hover(position={"x": 5, "y": 5})
        assert "committed in forward" in first.locator(".told").inner_text()
        assert "code" not in first.locator(".told").inner_text()
        view.screenshot(path=str(tmp_path / "page.png"))


# --- on disk, and shown ---


@pytest.mark.parametrize("name", ["run", "run.json"])
def test_vectors_are_saved_with_a_result(result: pardec.Result, tmp_path: Path, name: str) -> None:
    loaded = pardec.Result.load(result.save(tmp_path / name))
    assert loaded.latents is not None
    assert result.latents is not None
    assert torch.equal(loaded.latents, result.latents)
    assert loaded.timing == result.timing
    assert (loaded.tokens, loaded.sequences.shape) == (result.tokens, result.sequences.shape)
    assert np.array_equal(loaded.trace.tokens, result.trace.tokens)
    assert np.array_equal(loaded.trace.commit_step, result.trace.commit_step)
    assert (loaded.pieces, loaded.shown, loaded.seeds) == (result.pieces, result.shown, result.seeds)
    assert loaded.trace.steps == result.trace.steps
    again = pardec.Result.load(loaded.save(tmp_path / f"again-{name}"))
    assert [one.tobytes() for one in again.images] == [one.tobytes() for one in loaded.images]


def test_misshapen_vectors_are_refused(result: pardec.Result, tmp_path: Path) -> None:
    document = json.loads(result.save(tmp_path / "run.json").read_text())
    for latents in (document["tensors"]["latents"][:1], [row[:2] for row in document["tensors"]["latents"]], [[1.0]]):
        torn = {**document, "tensors": {**document["tensors"], "latents": latents}}
        (tmp_path / "run.json").write_text(json.dumps(torn))
        with pytest.raises(ResultError, match="latents is"):
            pardec.Result.load(tmp_path / "run.json")


def test_a_file_s_metadata_reproduces_its_image(model: pardec.Model, result: pardec.Result) -> None:
    record = pngs.of_result(result, 0)
    assert (record["pictures"], record["temperature"], record["cfg"]) == (
        [{"class": 3, "seed": 5, "nfe": 5, "generated": TOKENS}], 1.0, 2.5,
    )  # fmt: skip
    again = model.generate(**pngs.generate_arguments(record)).images
    assert np.abs(np.asarray(again[0]).astype(int) - np.asarray(result.images[0])).max() <= 1


def test_views_show_images_of_vectors(result: pardec.Result) -> None:
    data = json.loads(page(result).partition('id="data">')[2].partition("</script>")[0])
    assert [one["title"] for one in data["pictures"]] == ["class 3", "no class", "class 0"]
    assert [one["codes"] for one in data["pictures"]] == [None] * 3
    for row, one in enumerate(data["pictures"]):
        assert one["steps"] == result.trace.commit_step[row].tolist()
        assert one["gained"] == [one["steps"].count(step) for step in one["steps"]]
        assert "drafted" not in one
    assert fragment(result).count("<img") == 6
    assert len(png(result)) > 1000
    assert len(gif(result)) > 1000


def test_views_of_vectors_without_a_decoder_show_the_decode_order(
    model: pardec.Model, folder: Path, tmp_path: Path
) -> None:
    from rich.console import Console

    bare = pardec.load(vector_painter(tmp_path / "bare", channels=None), device="cpu")
    result = bare.generate(label=[1, 2], sampler=MAR, seed=0)
    assert result.images is None
    rows = traced_tokens(result)
    assert [[cell.step for cell in row] for row in rows] == result.trace.commit_step.tolist()
    assert "".join(cell.text for cell in rows[0]).count("\n") == SIDE
    for text in (page(result), fragment(result)):
        assert "■" in text
    assert png(result)[:4] == b"\x89PNG"
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(finished(result))
    assert console.export_text().count("■") == 2 * TOKENS
