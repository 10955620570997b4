"""pardec.ImagePipeline is called like diffusers' image pipelines, and its images are those of Model.generate."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline, ImagePipelineOutput, PixArtAlphaPipeline

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.samplers.events import Accepted
from pardec.views.unfinished import BLANK
from tests.pardec.painters import CLASSES, DEFAULTS, FEATURES, SIDE, painter


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> pardec.ImagePipeline:
    folder = painter(tmp_path_factory.mktemp("painters") / "classes", "class")
    return quiet(pardec.ImagePipeline.from_pretrained(folder, device="cpu"))


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> pardec.ImagePipeline:
    folder = painter(tmp_path_factory.mktemp("painters") / "captions", "text")
    return quiet(pardec.ImagePipeline(pardec.load(folder, device="cpu")))


def quiet(pipe: pardec.ImagePipeline) -> pardec.ImagePipeline:
    pipe.set_progress_bar_config(disable=True)
    return pipe


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def codes(pipe: pardec.ImagePipeline, **arguments: Any) -> torch.Tensor:
    latents: torch.Tensor = pipe(output_type="latent", **arguments).images
    return latents


def test_the_images_are_those_of_generate(reading: pardec.ImagePipeline) -> None:
    texts = ["a red circle", "two squares"]
    shape = {"temperature": 0.8, "top_k": 10, "top_p": 0.9, "sampler": "sjd"}
    out = reading(texts, guidance_scale=3.0, num_images_per_prompt=2, generator=seeded(1), **shape)
    assert isinstance(out, ImagePipelineOutput)
    assert isinstance(reading, DiffusionPipeline)
    seeds = torch.randint(2**62, (4,), generator=seeded(1)).tolist()
    result = reading.model.generate(texts, cfg=3.0, num_images=2, seed=seeds, **shape)
    assert [one.tobytes() for one in out.images] == [one.tobytes() for one in result.images]
    assert reading.result.seeds == seeds
    assert reading.result.shown == [texts[0], texts[0], texts[1], texts[1]]


def test_defaults_are_the_checkpoints(drawing: pardec.ImagePipeline) -> None:
    drawing(class_labels=1, generator=seeded(0), output_type="latent")
    assert {name: drawing.result.settings[name] for name in DEFAULTS} == DEFAULTS
    assert drawing.result.spec.startswith("sequential")
    for scale in (1.0, 0.0):  # no guidance, as diffusers has it
        drawing(class_labels=1, generator=seeded(0), output_type="latent", guidance_scale=scale)
        assert drawing.result.settings["cfg"] is None
        assert drawing.result.forward_rows == drawing.result.nfe


def test_a_generator_gives_the_seeds(drawing: pardec.ImagePipeline) -> None:
    shape: dict[str, Any] = {"class_labels": [0, 1], "num_images_per_prompt": 2, "top_k": None, "temperature": 3.0}
    first = codes(drawing, **shape, generator=seeded(3))
    assert torch.equal(first, codes(drawing, **shape, generator=seeded(3)))
    assert not torch.equal(first, codes(drawing, **shape, generator=seeded(4)))
    running = seeded(3)
    codes(drawing, **shape, generator=running)
    assert not torch.equal(first, codes(drawing, **shape, generator=running))
    each = codes(drawing, **shape, generator=[seeded(at) for at in range(4)])
    for at in range(4):  # alone it is the same
        alone = codes(drawing, class_labels=at // 2, top_k=None, temperature=3.0, generator=[seeded(at)])
        assert torch.equal(alone[0], each[at])
    with torch.random.fork_rng():
        torch.manual_seed(9)
        loose = codes(drawing, **shape)
        assert not torch.equal(loose, codes(drawing, **shape))
        torch.manual_seed(9)
        assert torch.equal(loose, codes(drawing, **shape))


def test_every_output_type_is_the_same_images(drawing: pardec.ImagePipeline) -> None:
    shape: dict[str, Any] = {"class_labels": [2, 0], "sampler": "sjd"}
    images = {kind: drawing(**shape, generator=seeded(5), output_type=kind).images for kind in ("pil", "np", "pt")}
    latent = codes(drawing, **shape, generator=seeded(5))
    height, width = images["pil"][0].height, images["pil"][0].width
    assert (latent.shape, latent.dtype) == ((2, SIDE, SIDE), torch.int64)
    assert (images["np"].shape, images["np"].dtype) == ((2, height, width, 3), np.float32)
    assert (images["pt"].shape, images["pt"].dtype) == ((2, 3, height, width), torch.float32)
    assert np.array_equal(images["np"], images["pt"].permute(0, 2, 3, 1).numpy())
    assert 0 <= images["np"].min() < images["np"].max() <= 1
    pixels = np.stack([np.asarray(one) for one in images["pil"]])
    assert np.abs(images["np"] * 255 - pixels).max() <= 0.5 + 1e-3
    expected = drawing.imaging.decode(latent[1:])
    assert torch.allclose(images["pt"][1:], (expected / 2 + 0.5).clamp(0, 1))
    (alone,) = drawing(**shape, generator=seeded(5), output_type="latent", return_dict=False)
    assert torch.equal(alone, latent)


def test_the_callback_sees_every_round(drawing: pardec.ImagePipeline) -> None:
    calls: list[tuple[int, int, torch.Tensor, torch.Tensor]] = []

    def look(pipe: Any, step: int, timestep: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        assert pipe is drawing
        calls.append((step, timestep, tensors["latents"], tensors["committed"]))
        return tensors

    names = ["latents", "committed"]
    shape: dict[str, Any] = {"class_labels": [0, 1, 2], "sampler": "sjd", "generator": seeded(2)}
    final = codes(drawing, **shape, callback_on_step_end=look, callback_on_step_end_tensor_inputs=names)
    assert [step for step, *_ in calls] == list(range(max(drawing.result.nfe)))
    before = torch.full_like(final, -1)
    for _, timestep, latents, committed in calls:
        assert torch.equal((latents >= 0) & (before < 0), committed)
        assert torch.equal(latents[before >= 0], before[before >= 0])
        assert timestep == int((latents < 0).flatten(1).sum(1).max())
        before = latents
    assert torch.equal(before, final)


def test_a_callback_may_stop_and_may_not_write(drawing: pardec.ImagePipeline) -> None:
    def stop(pipe: Any, step: int, timestep: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        pipe._interrupt = step == 4
        return {}

    shape: dict[str, Any] = {"class_labels": 1, "generator": seeded(0), "callback_on_step_end": stop}
    latent = codes(drawing, **shape)
    assert (latent.flatten() >= 0).tolist() == [True] * 5 + [False] * (SIDE**2 - 5)
    assert drawing.result is None
    image = np.asarray(drawing(**shape | {"generator": seeded(0)}).images[0])
    assert (image[-1] == BLANK).all()
    floats = drawing(**shape | {"generator": seeded(0)}, output_type="np").images[0]
    assert np.allclose(floats * 255, image)

    def write(pipe: Any, step: int, timestep: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"latents": tensors["latents"] + 1}

    with pytest.raises(SpecError, match="changes latents"):
        drawing(class_labels=1, callback_on_step_end=write)
    assert not drawing.interrupt


def test_features_replace_captions(reading: pardec.ImagePipeline) -> None:
    texts = ["a red circle", "a large blue square on grey"]
    shape: dict[str, Any] = {"sampler": "sjd"}
    read: Any = reading.model.language_model.imaging.encode  # type: ignore[union-attr]
    features = read(texts)
    assert features[0].shape[1] == FEATURES
    expected = codes(reading, prompt=texts, generator=seeded(0), **shape)
    assert torch.equal(expected, codes(reading, prompt_embeds=features, generator=seeded(0), **shape))
    longest = max(map(len, features))
    padded = torch.stack([torch.nn.functional.pad(row, (0, 0, 0, longest - len(row)), value=7.0) for row in features])
    mask = torch.tensor([[at < len(row) for at in range(longest)] for row in features]).long()
    both = {"prompt_embeds": padded, "prompt_attention_mask": mask}
    assert torch.equal(expected, codes(reading, generator=seeded(0), **both, **shape))
    with pytest.raises(SpecError, match="prompt_attention_mask"):
        codes(reading, prompt_embeds=padded, prompt_attention_mask=mask[:1])


def test_codes_need_no_decoder_and_images_do(tmp_path: Path) -> None:
    bare = quiet(pardec.ImagePipeline.from_pretrained(str(painter(tmp_path / "bare", "class", tokenizer=None))))
    assert codes(bare, class_labels=0).shape == (1, SIDE, SIDE)
    with pytest.raises(ModelError, match="no image tokenizer") as caught:
        bare(class_labels=0)
    assert "latent" in str(caught.value.hint)


def test_it_moves_by_loading_its_weights_again(
    drawing: pardec.ImagePipeline, reading: pardec.ImagePipeline, tmp_path: Path
) -> None:
    assert drawing.to("cpu").to(torch.device("cpu"), torch.float32) is drawing
    moved = pardec.ImagePipeline(painter(tmp_path / "moved", "class"))
    assert quiet(moved).to(torch.bfloat16).dtype == torch.bfloat16
    assert codes(moved, class_labels=0).shape == (1, SIDE, SIDE)
    assert torch.equal(codes(moved.to(torch.float32), class_labels=0, generator=seeded(0)).cpu(),
                       codes(drawing, class_labels=0, generator=seeded(0)))  # fmt: skip
    with pytest.raises(SpecError, match="before the pipeline was created"):
        reading.to(torch.bfloat16)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"class_labels": CLASSES}, f"label {CLASSES} is not a class"),
    ({"prompt": "a"}, "draws classes"),
    ({}, "no class is given"),
    ({"class_labels": 0, "output_type": "tensor"}, "output_type 'tensor' is unknown"),
    ({"class_labels": 0, "generator": 5}, "generator must be a torch.Generator"),
    ({"class_labels": [0, 1], "generator": [torch.Generator()]}, "1 generators for 2 images"),
    ({"class_labels": 0, "num_images_per_prompt": 0}, "num_images must be a whole number of at least 1"),
    ({"class_labels": 0, "callback_on_step_end_tensor_inputs": ["codes"]}, "has \\['codes'\\]"),
    ({"class_labels": 0, "sampler": "threshold"}, "for masked models"),
    ({"class_labels": 0, "temperature": -1.0}, "temperature must be at least 0"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_refused_before_the_first_forward(
    drawing: pardec.ImagePipeline, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("pardec.samplers.speculative.loop.decode", lambda *_, **__: pytest.fail("a forward was made"))
    with pytest.raises(SpecError, match=message) as caught:
        drawing(**arguments)
    assert caught.value.hint


def test_a_pipeline_takes_image_models_only(drawing: pardec.ImagePipeline) -> None:
    with pytest.raises(SpecError, match="text model"):
        pardec.ImagePipeline("tiny-llama")
    with pytest.raises(SpecError, match="got int"):
        pardec.ImagePipeline(5)
    with pytest.raises(SpecError, match="takes no 'variant'"):
        pardec.ImagePipeline.from_pretrained("tiny-llama", variant="fp16")
    with pytest.raises(SpecError, match="not saved"):
        drawing.save_pretrained("anywhere")


def test_the_call_has_the_names_of_diffusers() -> None:
    ours = inspect.signature(pardec.ImagePipeline.__call__).parameters
    theirs = inspect.signature(PixArtAlphaPipeline.__call__).parameters
    shared = {"prompt", "guidance_scale", "num_images_per_prompt", "generator", "output_type", "return_dict"}
    shared |= {"prompt_embeds", "prompt_attention_mask"}
    assert shared <= set(ours) & set(theirs)
    assert ours["output_type"].default == theirs["output_type"].default
    assert ours["num_images_per_prompt"].default == theirs["num_images_per_prompt"].default


def test_the_progress_bar_counts_tokens(
    drawing: pardec.ImagePipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[int] = []
    real = type(drawing.model).run

    def counted(self: Any, call: Any, **options: Any) -> Any:
        for event in real(self, call, **options):
            if isinstance(event, Accepted):
                rounds.append(int(event.committed.sum()))
            yield event

    monkeypatch.setattr(type(drawing.model), "run", counted)
    drawing.set_progress_bar_config(disable=False, desc="drawing")
    try:
        codes(drawing, class_labels=[0, 1])
    finally:
        quiet(drawing)
    assert sum(rounds) == 2 * SIDE**2
    output = capsys.readouterr().err
    assert "drawing" in output
    assert f"{2 * SIDE**2}/{2 * SIDE**2}" in output
