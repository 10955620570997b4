"""Images of NextStep-1 from captions: compared with the published sampling, by every applicable method, at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import ArgumentError, ModelError, SpecError
from pardec.models.images.contracts import Condition
from pardec.samplers.rng import Keyed, row_seeds
from tests.models import nextstep_files as files
from tests.reference import naive_nextstep as naive
from tests.samplers.vector_toys import kolmogorov

PUBLISHED = "guidance=constant,last=noise"
CAPTIONS = ["a red house", "two cats by the sea"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.write(tmp_path_factory.mktemp("nextstep") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> pardec.Model:
    return pardec.load(str(folder))


def noise(seed: int, tokens: int, steps: int, size: int = 16) -> Tensor:
    """[S, T + 1, d]: the noise that a row with this seed uses."""
    index = torch.arange(tokens)[None]
    source = Keyed((seed,))
    uniforms = source.uniform(np.zeros(1, dtype=int), np.zeros(1, dtype=int), index, "token", (steps + 1) * size)
    normal: Tensor = torch.special.ndtri(uniforms).float()
    return normal.view(tokens, steps + 1, size)


def latents(result: Any) -> np.ndarray:
    return np.stack([np.asarray(image) for image in result.latents])


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({}, {"cfg": 3.0}),
        ({}, {"cfg": 1.0}),
        ({}, {"cfg": 3.0, "negative_prompt": "blurry", "size": (8, 16)}),
        ({"use_norm": True, "timesteps_shift": 3.2}, {"cfg": 2.0}),
        ({"flow_noise": 0}, {"cfg": 2.0}),
    ],
)
def test_images_are_those_of_the_published_sampling(
    tmp_path: Path, settings: dict[str, Any], arguments: dict[str, Any]
) -> None:
    model = pardec.load(str(files.write(tmp_path / "model", settings={**files.SETTINGS, **settings})))
    result = model.generate(CAPTIONS, seed=11, sampler=f"sequential:{PUBLISHED}", temperature=1.0, **arguments)
    library, weights = files.library_model(), files.tensors()
    height, width = arguments.get("size", (12, 12))
    grid = (height // 4, width // 4)
    network: Any = model.network
    for row, (caption, seed) in enumerate(zip(CAPTIONS, row_seeds(11, 2), strict=True)):
        cond, away = network.backbone.prompts.ids(
            Condition(text=caption, negative=arguments.get("negative_prompt")), grid
        )
        expected = naive.generate(
            library,
            weights,
            cond,
            None if arguments["cfg"] == 1 else away,
            noise(seed, grid[0] * grid[1], 5),
            cfg=arguments["cfg"],
            use_norm=settings.get("use_norm", False),
            shift=settings.get("timesteps_shift", 1.0),
            stochastic=settings.get("flow_noise", 1) > 0,
        )
        own = latents(result)[row].reshape(-1, 16)
        np.testing.assert_allclose(own, expected.numpy(), atol=2e-3, rtol=2e-3)
        assert result.images[row].size == (width, height)
    assert result.nfe == [grid[0] * grid[1]] * 2


def test_without_a_sampler_it_is_the_published_one(model: pardec.Model) -> None:
    own = model.generate("a red house", seed=2, cfg=2.0)
    named = model.generate("a red house", seed=2, cfg=2.0, sampler=f"sequential:{PUBLISHED}")
    assert np.array_equal(latents(own), latents(named))
    assert own.shown == ["a red house"]


@pytest.mark.parametrize("window", [1, 3, 9, 20])
def test_jacobi_gives_the_image_of_sequential(model: pardec.Model, window: int) -> None:
    arguments: dict[str, Any] = {"seed": 5, "cfg": 2.0, "num_images": 2}
    expected = model.generate(CAPTIONS, sampler=f"sequential:{PUBLISHED}", **arguments)
    result = model.generate(CAPTIONS, sampler=f"seeded_jacobi:tol=0,window={window},{PUBLISHED}", **arguments)
    np.testing.assert_allclose(latents(result), latents(expected), atol=2e-3, rtol=2e-3)
    assert max(result.nfe) <= 9
    loose = model.generate(CAPTIONS, sampler=f"seeded_jacobi:tol=0.05,window={window},{PUBLISHED}", **arguments)
    assert sum(loose.nfe) <= sum(result.nfe)


def test_a_row_alone_is_the_row_in_a_batch(model: pardec.Model) -> None:
    for spec in (f"sequential:{PUBLISHED}", f"seeded_jacobi:tol=0.02,window=4,{PUBLISHED}"):
        seeds = [3, 8]
        both = model.generate(CAPTIONS, seed=seeds, cfg=2.0, sampler=spec)
        for row, caption in enumerate(CAPTIONS):
            alone = model.generate(caption, seed=[seeds[row]], cfg=2.0, sampler=spec)
            np.testing.assert_allclose(latents(alone)[0], latents(both)[row], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("last", ["x1", "noise"])
def test_cspd_of_a_checkpoint_with_itself_is_sequential(folder: Path, model: pardec.Model, last: str) -> None:
    arguments: dict[str, Any] = {"seed": 5, "cfg": 2.0}
    end = f"guidance=constant,last={last}"
    expected = model.generate(CAPTIONS, sampler=f"sequential:{end}", **arguments)
    spec = f"cspd:draft={folder},mode=exact,k=4,prefill=0,{end}"
    result = model.generate(CAPTIONS, sampler=spec, **arguments)
    np.testing.assert_allclose(latents(result), latents(expected), atol=2e-3, rtol=2e-3)
    assert result.nfe == [3, 3]  # nine tokens, four a call


def test_cspd_drafts_with_another_checkpoint(tmp_path: Path, model: pardec.Model) -> None:
    draft = files.write(tmp_path / "draft", near=0.001)
    spec = f"cspd:draft={draft},mode=exact,k=4,{PUBLISHED}"
    result = model.generate(CAPTIONS, seed=4, cfg=1.5, sampler=spec)
    assert all(3 <= calls < 9 for calls in result.nfe)
    assert np.isfinite(latents(result)).all()
    sized = model.generate(CAPTIONS[0], seed=4, cfg=1.5, sampler=spec, size=(8, 8))
    assert latents(sized).shape == (1, 2, 2, 16)


def test_accepted_and_redrawn_tokens_have_the_targets_distribution(tmp_path: Path, model: pardec.Model) -> None:
    """The second token of a drafted group, which depends on the first: values in 400 images against 400 others."""
    draft = files.write(tmp_path / "draft", near=0.004)
    arguments: dict[str, Any] = {"num_images": 400, "cfg": 1.5, "size": (4, 12)}
    spec = f"cspd:draft={draft},mode=exact,k=3,prefill=0,{PUBLISHED}"
    result = model.generate("a", seed=1, sampler=spec, **arguments)
    assert 0.2 < result.acceptance_rate < 0.98
    expected = model.generate("a", seed=9000, sampler=f"sequential:{PUBLISHED}", **arguments)
    ours, theirs = (latents(each)[:, 0].astype(np.float64) for each in (result, expected))
    for token in range(3):
        for value in (0, 7, 15):
            assert kolmogorov(ours[:, token, value], theirs[:, token, value]) > 0.001
    products = [np.array([np.corrcoef(each[:, 0].T, each[:, 1].T)]) for each in (ours, theirs)]
    assert np.abs(products[0] - products[1]).max() < 0.3  # five standard errors of a correlation


def test_methods_that_do_not_apply_are_refused_by_name(tmp_path: Path, folder: Path, model: pardec.Model) -> None:
    with pytest.raises(
        SpecError, match="mar samples several tokens per step, and model predicts each token from all tokens before"
    ):
        model.generate("x", sampler="mar:steps=4")
    with pytest.raises(SpecError, match="mode=reference tests a draft without the drafts before it"):
        model.generate("x", sampler=f"cspd:draft={folder}")
    still = pardec.load(str(files.write(tmp_path / "still", settings={**files.SETTINGS, "flow_noise": 0.0})))
    with pytest.raises(SpecError, match="cspd compares densities, and the head of still has none"):
        still.generate("x", sampler=f"cspd:draft={folder},mode=exact")
    with pytest.raises(SpecError, match="cspd compares densities, and the head of still has none"):
        model.generate("x", sampler=f"cspd:draft={tmp_path / 'still'},mode=exact")


def test_requests_that_it_cannot_draw_are_refused(model: pardec.Model) -> None:
    with pytest.raises(SpecError, match="draws captions and has no classes"):
        model.generate(label=3)
    with pytest.raises(SpecError, match="reads captions itself"):
        model.generate(prompt_embeds=torch.zeros(1, 2, 3))
    with pytest.raises(SpecError, match="negative_prompt needs guidance"):
        model.generate("x", negative_prompt="y")
    with pytest.raises(ArgumentError, match="draws multiples of 4 pixels"):
        model.generate("x", size=(10, 8))
    with pytest.raises((ArgumentError, ModelError), match="exceed the 120"):
        model.generate("x", size=(48, 48))


def test_what_was_fed_is_counted_by_the_token(model: pardec.Model) -> None:
    prompts = [len("a red house") + 5, 5]  # letters, the grid's four tokens and the one that begins an image
    result = model.generate(CAPTIONS[0], cfg=2.0, sampler=f"sequential:{PUBLISHED}")
    assert result.trace.fed == ((range(0), *(range(token, token + 1) for token in range(8))),)
    assert result.tokens_fed == [sum(prompts) + 2 * 8]
    result = model.generate(CAPTIONS[0], sampler="seeded_jacobi:tol=0,window=9")
    assert [len(fed) for fed in result.trace.fed[0]] == [8, *range(8, 0, -1)][: result.nfe[0]]  # zeros first
    assert result.tokens_fed == [prompts[0] + sum(map(len, result.trace.fed[0]))]


def test_the_pipeline_draws_captions_at_a_size(folder: Path, model: pardec.Model) -> None:
    pipe = pardec.ImagePipeline.from_pretrained(str(folder))
    out = pipe("a red house", guidance_scale=2.0, height=8, width=16, generator=torch.Generator().manual_seed(4))
    assert [image.size for image in out.images] == [(16, 8)]
    assert pipe.result.shown == ["a red house"]
    again = model.generate("a red house", cfg=2.0, size=(8, 16), seed=pipe.result.seeds)
    assert np.array_equal(np.asarray(out.images[0]), np.asarray(again.images[0]))


def test_captions_of_a_queue_share_batches(model: pardec.Model) -> None:
    rows = list(model.serve_batch([*CAPTIONS, "three"], batch_size=2, sampler=f"sequential:{PUBLISHED}", cfg=2.0))
    assert len(rows) == 3
    for result in (row.result for row in rows):
        again = model.generate(result.shown[0], seed=result.seeds, cfg=2.0, sampler=f"sequential:{PUBLISHED}")
        np.testing.assert_allclose(latents(again), latents(result), atol=2e-3, rtol=2e-3)
