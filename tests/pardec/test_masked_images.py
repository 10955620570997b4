"""Images of masked models from end to end: commands, events, views, serving, and logits computed in chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pardec
from pardec.cli import run
from pardec.images.pngs import BLANK
from pardec.samplers.events import Step
from pardec.samplers.masked import predict as forward
from pardec.views import image_view, order_image
from pardec.views.unfinished import Codes, unfinished
from tests.models.captioned_folders import SIDE, folder

SAMPLER = "maskgit:steps=3,noise=1"
CAPTIONS = ["a cat", "two dogs in a row", "snow"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("masked") / "mmada", "mmada")


@pytest.fixture(scope="module")
def model(path: Path) -> pardec.Model:
    return pardec.load(path, device="cpu")


def test_the_order_of_commits_is_what_views_show(model: pardec.Model) -> None:
    done = model.generate(CAPTIONS[:2], sampler=SAMPLER, temperature=1.0, cfg=2.0)
    for row in range(2):
        when = image_view.steps(done, row)
        assert when.shape == (SIDE, SIDE)
        # floor(9 cos(30 degrees)) = 7 and floor(9 cos(60)) = 4 stay open.
        assert np.bincount(when.ravel()).tolist() == [2, 3, 4]
        assert sorted(set(image_view.commit_counts(done, row).ravel().tolist())) == [2, 3, 4]
    top = image_view.max_count(done)
    assert image_view.heatmap(image_view.commit_counts(done, 0), top, (SIDE, SIDE)).size == (SIDE, SIDE)
    assert order_image.png(done)[:4] == b"\x89PNG"
    assert order_image.gif(done)[:3] == b"GIF"


def test_a_preview_is_blank_where_nothing_is_committed(model: pardec.Model) -> None:
    imaging = model.imaging
    codes = Codes(imaging.layout)
    known = []
    for event in model.stream(CAPTIONS[:1], sampler=SAMPLER, temperature=1.0):
        codes(event)
        if isinstance(event, Step):
            known.append(codes.known)
            pixels = np.asarray(unfinished(imaging, codes.codes)[0])[::2, ::2]
            blank = (codes.codes < 0).reshape(SIDE, SIDE)
            assert (pixels[blank] == BLANK).all()
    assert known == [2, 5, 9]


def test_the_command_draws_and_the_other_writes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.png"
    assert run(["image", str(path), "-p", "a cat", "-o", str(out), "-s", SAMPLER, "--device", "cpu", "--quiet"]) == 0
    assert Image.open(out).size == (2 * SIDE, 2 * SIDE)
    assert run(["generate", str(path), "-p", "a cat", "-n", "4", "--device", "cpu", "--quiet"]) == 0
    capsys.readouterr()


def test_the_default_of_the_command_is_the_authors_setting(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    assert run(["image", str(path), "-p", "a cat", "-o", str(out), "--device", "cpu", "--quiet"]) == 0
    from pardec.images.pngs import read

    record = read(out)
    assert record["spec"].startswith("confidence:of=raw+maskgit:steps=15,noise=1.0,anneal=product")
    assert record["cfg"] == 4.5


@pytest.mark.parametrize("cache", ["none", "mlcache:warmup=0", "dual"])
def test_rows_that_join_a_batch_are_as_alone(model: pardec.Model, cache: str) -> None:
    prompts = [*CAPTIONS, "a long row of snow and dogs", "cat"]
    arguments = {"sampler": f"{SAMPLER}@{cache}", "temperature": 1.0, "cfg": 2.0}
    served = {row.index: row.result.tokens[0] for row in model.serve_batch(prompts, batch_size=2, seed=4, **arguments)}
    together = model.generate(prompts, seed=4, **arguments)
    assert [served[index] for index in range(len(prompts))] == together.tokens


def test_logits_in_chunks_are_those_in_memory(model: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"sampler": f"{SAMPLER}@mlcache:warmup=0", "temperature": 1.0, "cfg": 2.0, "logprobs": 2}
    whole = model.generate(CAPTIONS, **arguments)
    monkeypatch.setattr(forward, "needs_chunks", lambda rows, vocab: True)
    parts = model.generate(CAPTIONS, **arguments)
    assert whole.tokens == parts.tokens
    assert whole.logprobs is not None
    assert parts.logprobs is not None
