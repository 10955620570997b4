"""Models of token maps through `generate`, `stream`, serving, saved results and views."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pardec
from pardec.images import pngs
from pardec.io.saving import ResultError
from pardec.models.errors import ModelError, SpecError
from pardec.models.scales.contracts import ScaleModel
from pardec.requests import draft_models
from pardec.samplers.events import Finished, Step
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed, row_seeds
from pardec.samplers.scales import loop as scales
from pardec.samplers.scales.contracts import ScaleRequest
from pardec.views import token_maps
from pardec.views.html import fragment, page
from pardec.views.order_image import gif, png
from pardec.views.preview import Preview
from pardec.views.terminal import finished
from pardec.views.unfinished import Codes, unfinished
from tests.samplers.scale_toys import model as toy

SIDES, TOKENS = (1, 2, 3, 4), 30


@pytest.fixture(scope="module")
def model() -> pardec.Model:
    return pardec.Model(toy())


@pytest.fixture
def refiner(monkeypatch: pytest.MonkeyPatch) -> ScaleModel:
    """The model that is loaded for every refiner's name."""
    small = toy(name="small", seed=9, layers=1)
    monkeypatch.setattr(draft_models, "scale_model", lambda *_: small)
    return small


@pytest.fixture(scope="module")
def result(model: pardec.Model) -> pardec.Result:
    return model.generate(label=[3, -1, 0], cfg=2.5, top_k=6, top_p=0.9, seed=[5, -6, 7])


def test_what_is_drawn_is_what_the_loop_draws(model: pardec.Model, result: pardec.Result) -> None:
    request = ScaleRequest((3, -1, 0), Keyed((5, -6, 7)), top_k=6, top_p=0.9, cfg=2.5)
    *_, end = scales.decode(toy(), resolve("sequential", "scales"), request)
    assert isinstance(end, Finished)
    assert result.tokens == end.tokens.tolist()
    assert result.sequences.tolist() == end.tokens.tolist()
    assert (result.nfe, result.forward_rows, result.generated) == ([4] * 3, [8, 4, 8], [TOKENS] * 3)
    assert (result.exact, result.deviation, result.finish) == ("distribution", [0.0] * 3, ["length"] * 3)
    assert (result.sides, result.grid, result.latents, result.text) == (SIDES, (4, 4), None, None)
    assert (result.shown, result.seeds) == ([3, -1, 0], [5, -6, 7])
    assert result.settings == {"temperature": 1.0, "top_k": 6, "top_p": 0.9, "cfg": 2.5}
    assert result.step_map[0].tolist() == [0] + [1] * 4 + [2] * 9 + [3] * 16
    assert result.tokens_per_forward == TOKENS / 4
    assert set(result.timing.parts) == {"transformer", "draw"}
    assert result.images[0].size == (8, 8)
    assert "no class" not in repr(result)


def test_rows_alone_and_copies_of_a_label(model: pardec.Model, result: pardec.Result) -> None:
    shaping: dict[str, Any] = {"cfg": 2.5, "top_k": 6, "top_p": 0.9}
    for row, (label, seed) in enumerate(zip([3, -1, 0], [5, -6, 7], strict=True)):
        alone = model.generate(label=label, seed=[seed], **shaping)
        assert alone.tokens[0] == result.tokens[row]
        assert alone.images[0].tobytes() == result.images[row].tobytes()
    copies = model.generate(label=[1, 2], num_images=2, seed=4)
    assert copies.shown == [1, 1, 2, 2]
    assert copies.seeds == list(row_seeds(4, 4))


def test_no_guidance_is_none_and_one_is_some(model: pardec.Model) -> None:
    none, zero, one = (model.generate(label=2, cfg=cfg) for cfg in (None, 0, 1))
    assert none.tokens == zero.tokens != one.tokens
    assert (none.forward_rows, one.forward_rows) == ([4], [8])
    assert zero.settings["cfg"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": 4}, "label 4 is not a class of toy"),
        ({"label": -2}, "label -2 is not a class of toy"),
        ({}, "no class is given"),
        ({"prompt": "a circle"}, "toy draws classes and cannot read a prompt"),
        ({"label": 1, "top_k": 9}, "top_k=9, and toy has 8 codes"),
        ({"label": 1, "min_p": 0.1}, "min_p is for tokens that come one by one; toy draws whole token maps"),
        ({"label": 1, "cfg_interval": 2}, "cfg_interval is for tokens that come one by one"),
        ({"label": 1, "allowed": [[1]]}, "allowed is for tokens that come one by one"),
        ({"label": 1, "logprobs": 1}, "logprobs is for tokens that come one by one"),
        ({"label": 1, "block_length": 4}, "block_length is for text and toy draws images"),
        ({"label": 1, "stop": "x"}, "stop is for text and toy draws images"),
        ({"label": 1, "num_return_sequences": 2}, "num_return_sequences is for text"),
        ({"label": 1, "negative_prompt": "x"}, "negative_prompt is a caption"),
        ({"label": 1, "max_new_tokens": 7}, "an image of toy has 30 tokens, got max_new_tokens=7"),
        ({"label": 1, "seed": [1, 2]}, "2 seeds for 1 rows"),
        ({"label": 1, "sampler": "mar"}, "'mar' is for models whose tokens are vectors"),
        ({"label": 1, "sampler": "threshold"}, "'threshold' is for masked models"),
        ({"label": 1, "sampler": "code"}, "code: refiner is missing"),
        ({"label": 1, "sampler": "code:refiner=x,steps=5"}, "steps=5 does not fit the 4 scales of toy"),
    ],
)
def test_refused_before_the_first_forward(model: pardec.Model, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        model.generate(**arguments)


def test_what_needs_a_language_model_is_refused(model: pardec.Model) -> None:
    with pytest.raises(ModelError, match="toy draws token maps and is not a language model"):
        model.logits(torch.tensor([[1]]))
    assert (model.family, model.quantized, model.tokenizer, model.prefix_cache) == ("scales", None, None, None)
    masked = resolve("sequential", "scales")
    with pytest.raises(SpecError, match="is for models that predict token maps scale by scale"):
        pardec.load("tiny-dream", device="cpu").generate("x", sampler=masked)


def test_the_refiner_s_forwards_are_counted_apart(model: pardec.Model, refiner: ScaleModel, tmp_path: Path) -> None:
    result = model.generate(label=[1, 2], sampler="code:refiner=small,steps=2")
    assert (result.nfe, result.draft_forwards) == ([2, 2], [2, 2])
    assert (result.exact, result.deviation) == ("relaxed", [None, None])
    assert set(result.timing.parts) == {"transformer", "refiner", "draw"}
    assert refiner.parameters == 100
    assert "2 forwards and 2 of the refiner" in fragment(result)
    entry = pngs.image_metadata(result)[0]
    assert (entry["nfe"], entry["draft_forwards"]) == (2, 2)
    loaded = pardec.Result.load(result.save(tmp_path / "result"))
    assert (loaded.draft_forwards, loaded.trace.fed) == (result.draft_forwards, result.trace.fed)
    alone = model.generate(label=[1, 2], sampler="code:refiner=small,steps=0")
    assert (alone.nfe, alone.draft_forwards) == ([0, 0], [4, 4])
    assert pardec.Result.load(alone.save(tmp_path / "alone")).step_map[0].tolist() == alone.step_map[0].tolist()


def test_events_and_the_callback(model: pardec.Model) -> None:
    seen: list[object] = []
    events = list(model.stream(label=[1, 2], callback=seen.append))
    assert seen == events
    steps = [event for event in events if isinstance(event, Step)]
    assert [int(step.committed.sum()) for step in steps] == [2, 8, 18, 32]


@pytest.mark.parametrize("name", ["result", "result.json"])
def test_results_are_saved_whole(result: pardec.Result, tmp_path: Path, name: str) -> None:
    path = result.save(tmp_path / name)
    loaded = pardec.Result.load(path)
    assert (loaded.sides, loaded.grid, loaded.tokens, loaded.seeds) == (SIDES, (4, 4), result.tokens, result.seeds)
    assert np.array_equal(loaded.trace.commit_score, result.trace.commit_score)
    assert [row.tolist() for row in loaded.step_map] == [row.tolist() for row in result.step_map]
    assert loaded.to_arrays()["tokens"].tolist() == result.tokens
    if name == "result":
        file = path / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"sides": [1, 2]}))
        with pytest.raises(ResultError, match="sides is"):
            pardec.Result.load(path)


def test_a_file_s_metadata_reproduces_its_image(model: pardec.Model, result: pardec.Result, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(pngs.png(result.images[1], pngs.of_result(result, 1)))
    arguments = pngs.generate_arguments(pngs.read(tmp_path / "image.png"))
    assert model.generate(**arguments).tokens[0] == result.tokens[1]


@pytest.mark.parametrize("view", [page, fragment, png, gif, finished])
def test_views_show_images_of_token_maps(result: pardec.Result, view: Callable[[pardec.Result], object]) -> None:
    shown = view(result)
    assert shown
    if view is page:
        assert '"sides": [1, 2, 3, 4]' in str(shown) or '"sides":[1,2,3,4]' in str(shown)
    if view is fragment:
        assert "coarse to fine" in str(shown)
    if view is gif:
        assert isinstance(shown, bytes)
        assert getattr(Image.open(BytesIO(shown)), "n_frames", 1) == 5


def test_the_heat_map_has_a_panel_for_each_map(result: pardec.Result) -> None:
    """Two by two panels of 19 pixels, two pixels apart: the first map has one code, the last four by four."""
    image = np.asarray(token_maps.heatmap(result, 0, (40, 40)))
    assert len({tuple(pixel) for pixel in image[:19, :19].reshape(-1, 3)}) == 1
    assert tuple(image[0, 0]) != tuple(image[0, 19])
    maps = token_maps.split(result, 0, result.trace.commit_score)
    assert [each.shape for each in maps] == [(side, side) for side in SIDES]
    assert maps[1].ravel().tolist() == result.trace.commit_score[0, 1:5].tolist()


def test_an_unfinished_image_is_decoded_from_the_maps_that_are_known(model: pardec.Model) -> None:
    imaging = model.imaging
    codes, images, complete = Codes(imaging.layout), [], []
    for event in model.stream(label=[1, 2], seed=[3, 4]):
        codes(event)
        images.append(unfinished(imaging, codes.codes)[0] if len(codes.codes) else None)
        complete.append(codes.complete)
    assert complete[:6] == [0, 2, 4, 6, 8, 8]
    whole = model.generate(label=[1, 2], seed=[3, 4])
    assert images[0] is not None
    assert {tuple(pixel) for pixel in np.asarray(images[0]).reshape(-1, 3)} == {pngs.BLANK}
    assert images[-1].tobytes() == whole.images[0].tobytes()
    assert codes.tensor().tolist() == whole.tokens
    first = images[1]
    assert first is not None
    assert len(set(map(tuple, np.asarray(first).reshape(-1, 3).tolist()))) == 1
    assert codes.known == 2 * TOKENS


def test_the_preview_counts_tokens(model: pardec.Model) -> None:
    assert model.imaging is not None
    with Preview(model.imaging, 2, StringIO()) as preview:
        lines = []
        for event in model.stream(label=[1, 2]):
            preview(event)
            lines.append(preview.progress())
    assert lines[2].startswith("10 of 60 tokens, 2 forwards")
    assert lines[4] == "60 of 60 tokens, 4 forwards"


def test_served_rows_are_those_of_generate(model: pardec.Model, result: pardec.Result) -> None:
    prompts = [{"label": [label], "seed": seed} for label, seed in zip([3, -1, 0], [5, -6, 7], strict=True)]
    with model.serve_batch(prompts, batch_size=2, cfg=2.5, top_k=6, top_p=0.9) as serving:
        rows = {served.index: served.result for served in serving}
        waits = serving.waits
    assert [rows[index].tokens[0] for index in range(3)] == result.tokens
    assert rows[1].sides == SIDES
    assert waits == "images of token maps are generated a whole batch at a time"


def test_the_pipeline_draws_token_maps(model: pardec.Model) -> None:
    pipe = pardec.ImagePipeline(model)
    generator = torch.Generator().manual_seed(0)
    images = pipe(class_labels=[1, 2], guidance_scale=1.0, generator=generator).images
    assert len(images) == 2
    assert pipe.result.settings["cfg"] == 1.0
    codes = pipe(class_labels=1, output_type="latent", generator=generator.manual_seed(0)).images
    assert codes.shape == (1, TOKENS)
    pixels = pipe(class_labels=1, output_type="pt", guidance_scale=0, generator=generator.manual_seed(0)).images
    assert pixels.shape == (1, 3, 8, 8)
    with pytest.raises(SpecError, match="num_inference_steps=3 works with mar only"):
        pipe(class_labels=1, num_inference_steps=3)
    reports = []

    def stop(pipe: Any, step: int, remaining: int, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        reports.append((step, remaining, int(tensors["committed"].sum())))
        pipe._interrupt = step == 1
        return {}

    names = ["latents", "committed"]
    watch: dict[str, Any] = {"callback_on_step_end": stop, "callback_on_step_end_tensor_inputs": names}
    part = pipe(class_labels=1, output_type="latent", **watch)
    assert reports == [(0, 29, 1), (1, 25, 4)]
    assert (part.images < 0).sum() == 25
