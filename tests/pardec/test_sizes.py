"""Images of several sizes: the size is an argument of a request, and all later steps use its grid."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import ArgumentError, SpecError
from pardec.models.images.conditioned import Prefix
from pardec.models.images.contracts import Condition, ImageLayout
from pardec.models.images.llamagen import LlamaGenImaging
from pardec.requests.images import with_defaults
from pardec.samplers.events import Finished
from tests.samplers.picture_toys import features, toy_pictures

CODES = torch.tensor([4, 0, 7, 2])
QUICK = "mar:steps=2,head=9"


class Sizes(LlamaGenImaging):
    """An image interface with two pixels per code and row ends; a prompt has as many tokens as the grid has rows."""

    sizes = "multiples of 2 pixels, up to 8"
    layout = ImageLayout(2, 3, row_end=5, ids=CODES)  # type: ignore[assignment]
    can_decode = True  # type: ignore[assignment]
    downsample = 2  # type: ignore[assignment]

    def resized(self, height: int, width: int) -> Sizes:  # type: ignore[override]
        if height % 2 or width % 2 or max(height, width) > 8:
            raise ArgumentError(f"{self.name} draws no {height} by {width}", f"its sizes are {self.sizes}")
        other = copy(self)
        other.layout = replace(self.layout, rows=height // 2, columns=width // 2)
        return other

    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        prefix = super().prefix(conditions)
        rows = self.layout.rows
        uncond = None if prefix.uncond is None else tuple(states[:1].expand(rows, -1) for states in prefix.uncond)
        return Prefix(tuple(states[:1].expand(rows, -1) for states in prefix.cond), uncond)

    def decode(self, codes: Tensor) -> Tensor:
        assert codes.min() >= 0
        pixels = (codes[:, None].float() / 2 - 1).expand(-1, 3, -1, -1)
        return pixels.repeat_interleave(2, 2).repeat_interleave(2, 3)


def toy() -> pardec.Model:
    base = toy_pictures(seed=3, side=4, vocab=8, sharp=2.0)
    own = base.imaging
    assert isinstance(own, LlamaGenImaging)
    return pardec.Model(replace(base, imaging=Sizes(own.embedder, own.side, name="toy")))


@pytest.mark.parametrize("sampler", ["sequential", "sjd:window=5,init=up", "jacobi"])
def test_everything_follows_the_size_of_the_request(sampler: str) -> None:
    model = toy()
    result = model.generate(prompt_embeds=features([1, 1]), size=(6, 4), sampler=sampler, cfg=2.0)
    assert result.grid == (3, 2)
    assert result.stride == 3
    assert result.prompts == [3, 3]
    assert result.settings["size"] == [6, 4]
    assert [image.size for image in result.images] == [(4, 6)] * 2
    assert all([tokens[2], tokens[5], tokens[8]] == [5] * 3 for tokens in result.tokens)
    alone = model.generate(prompt_embeds=features([1, 1])[1:], size=[6, 4], sampler=sampler, cfg=2.0)
    assert alone.tokens[0] == result.tokens[1]
    plain = model.generate(prompt_embeds=features([1, 1]), sampler=sampler, cfg=2.0)
    assert (plain.grid, "size" in plain.settings) == ((2, 3), False)
    assert model.imaging.layout.grid == (2, 3)


def test_a_draft_model_draws_in_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from pardec.requests import draft_models

    monkeypatch.setattr(draft_models, "for_text", lambda sampler, target: toy().network)
    kwargs: dict[str, Any] = {"prompt_embeds": features([1]), "size": (8, 4)}
    drafted = toy().generate(sampler="model:name=other,k=3", **kwargs)
    assert drafted.tokens == toy().generate(sampler="sequential", **kwargs).tokens
    assert drafted.nfe[0] < len(drafted.tokens[0])


@pytest.mark.parametrize("size", [(5, 4), (4, 16)])
def test_a_size_that_the_model_lacks_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match=rf"toy draws no {size[0]} by {size[1]}"):
        toy().generate(prompt_embeds=features([1]), size=size)


@pytest.mark.parametrize("size", [4, "8x8", (8,), (8, 8, 8), (8, 0), (8.0, 8), (True, 8), (8, 2**20)])
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(SpecError, match="size must be a height and a width in pixels"):
        toy().generate(prompt_embeds=features([1]), size=size)


def test_models_of_one_size_take_their_own_and_refuse_others() -> None:
    model = pardec.load("tiny-mar", device="cpu")
    own = tuple(codes * model.imaging.downsample for codes in model.imaging.layout.grid)
    result = model.generate(label=[4], size=own, sampler=QUICK)
    assert result.settings["size"] == list(own)
    assert result.latents is not None
    plain = model.generate(label=[4], sampler=QUICK)
    assert plain.latents is not None
    assert torch.equal(plain.latents, result.latents)
    with pytest.raises(ArgumentError, match=f"tiny-mar draws images of {own[0]} by {own[1]}"):
        model.generate(label=[4], size=(own[0], 2 * own[1]))
    captions = pardec.load("tiny-llamagen", device="cpu")
    with pytest.raises(ArgumentError, match="size is 8 by 8 pixels, and tiny-llamagen draws images of"):
        captions.generate("a small red circle", size=(8, 8))
    with pytest.raises(SpecError, match="size is for image models"):
        pardec.load("tiny-llama", device="cpu").generate("Tom", size=(8, 8))


def test_the_pipeline_chooses_a_size_or_enlarges() -> None:
    pipe = pardec.ImagePipeline(toy())
    kinds = {
        kind: pipe(prompt_embeds=features([1]), height=8, output_type=kind, sampler="sjd").images
        for kind in ("pil", "np", "latent")
    }
    assert kinds["pil"][0].size == (6, 8)
    assert kinds["np"].shape == (1, 8, 6, 3)
    assert kinds["latent"].shape == (1, 4, 3)
    assert pipe.result.grid == (4, 3)
    seen = []

    def watch(pipe: Any, step: int, left: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.append(tuple(tensors["latents"].shape))
        pipe._interrupt = step == 1
        return {}

    stopped = pipe(prompt_embeds=features([1]), height=4, width=8, callback_on_step_end=watch).images[0]
    assert (stopped.size, set(seen)) == ((8, 4), {(1, 2, 4)})


def test_rows_of_other_sizes_share_no_batch() -> None:
    model = toy()
    calls = [model.prepare(prompt_embeds=features([1]), size=size) for size in ((4, 4), (6, 4), (4, 4))]
    rows = sorted(model.serve(calls, batch_size=3), key=lambda row: row.index)
    for call, row in zip(calls, rows, strict=True):
        *_, end = model.run(call)
        assert isinstance(end, Finished)
        assert row.result.tokens == model.result(call, end, 1.0).tokens
        assert row.result.images is not None


def test_the_command_draws_in_a_size(cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    from pardec.images import pngs

    code, _, err = cli("image", "tiny-mar", "--class", 1, "--size", "48", "-o", tmp_path / "a.png")
    assert code
    assert "a size must be HEIGHTxWIDTH in pixels, got '48'" in err
    code, _, err = cli("image", "tiny-mar", "--class", 1, "--size", "7x9", "-o", tmp_path / "a.png", "--quiet")
    assert code
    assert "size is 7 by 9 pixels, and tiny-mar draws images of" in err
    own = pardec.load("tiny-mar", device="cpu").imaging
    side = own.layout.rows * own.downsample
    command = ("image", "tiny-mar", "--class", 1, "--size", f"{side}x{side}", "-s", QUICK, "--quiet", "--json")
    code, out, err = cli(*command, "-o", tmp_path / "a.png")
    assert not code, err
    assert json.loads(out)["settings"]["size"] == [side, side]
    assert pngs.generate_arguments(pngs.read(tmp_path / "a.png"))["size"] == [side, side]


def test_defaults_leave_the_size_alone() -> None:
    imaging = toy().imaging
    assert imaging is not None
    assert "size" not in with_defaults(imaging, {})
