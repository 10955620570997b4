"""The image trainer on a tiny network: codebook, resuming, measuring, the published format."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from image_training import codebook, corpus, data, tokenizer, words
from image_training.drawer import DrawerRun
from image_training.evaluate import reconstruction
from image_training.run import Training
from image_training.tokenizer import TokenizerRun
from safetensors.torch import load_file
from train_image import options

import pardec
from pardec.images.drawing import draw
from pardec.images.scenes import COLOURS, parse
from pardec.models.images.conditioned import Conditioned
from pardec.models.images.contracts import Condition
from pardec.models.images.vq import (
    VQ,
    VQShape,
    load_vq,
    to_pixels,
)
from pardec.models.plan import Plan, Visible
from tests.resumed import check_a_resumed_run

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("without_autocast")
SMALL = "codebook_size=16,z_channels=8,ch_mult=1-1-1"


@pytest.fixture(autouse=True)
def early_codebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes are used from the third step on, and dead codes are searched for at every second step."""
    monkeypatch.setattr(tokenizer, "PLAIN", 2)
    monkeypatch.setattr(tokenizer, "GATHER", 2)
    monkeypatch.setattr(codebook, "EVERY", 2)


def made(folder: Path, steps: int, state: str = "state") -> TokenizerRun:
    where = ["--out", str(folder / "out"), "--state", str(folder / state), "--device", "cpu"]
    size = ["--steps", str(steps), "--batch", "2", "--pictures", "3", "--shape", SMALL]
    return TokenizerRun(options(["--model", "tiny-vq", *size, *where]))


@pytest.mark.usefixtures("with_autocast")
def test_it_exports_what_it_measured_in_the_published_format(tmp_path: Path) -> None:
    run = made(tmp_path, 4)
    run.train()
    found = load_file(tmp_path / "out" / "vq.safetensors")
    assert all(value.dtype is torch.bfloat16 for value in found.values())
    assert found["quantize.embedding.weight"].shape == (16, 8)
    model = load_vq(tmp_path / "out")
    assert model.shape == VQShape(16, 8, 8, 32, (1, 1, 1), 1)
    for name, value in model.state_dict().items():
        assert torch.equal(value, run.average[name].bfloat16().float()), name
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["reconstruction"] == reconstruction(model, 3)
    assert card["reconstruction"]["originals_right"] == 1
    assert (card["recipe"]["steps"], card["recipe"]["pictures"], card["curve"][-1]["step"]) == (4, 8, 4)
    assert card["parameters"] == sum(value.numel() for value in model.parameters())
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.startswith("# tiny-vq")
    assert f"| 3 | {card['reconstruction']['right']:.1%} |" in page


def test_a_resumed_run_ends_where_an_unbroken_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codebook, "DEAD", 0.99)
    whole = made(tmp_path, 7, state="whole")
    whole.train()
    assert whole.revived
    for at in (1, 4):  # before there are codes, and after
        part = made(tmp_path, 7, state=f"parts-{at}")
        take = part.take

        def take_then_stop(part: TokenizerRun = part, take=take, at: int = at) -> torch.Tensor:  # type: ignore[no-untyped-def]
            if part.step == at:
                part.stop()
            return take()  # type: ignore[no-any-return]

        part.take = take_then_stop  # type: ignore[method-assign]
        part.train()
        assert part.step == at + 1
        resumed = made(tmp_path, 7, state=f"parts-{at}")
        assert resumed.step == at + 1
        resumed.train()
        for key, value in whole.average.items():
            torch.testing.assert_close(resumed.average[key], value, rtol=0, atol=0)
        assert resumed.revived == whole.revived


def test_a_run_learns_two_pictures_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "warmup", 5)
    made_run = made(tmp_path, 60)
    pictures = made_run.images(0)
    made_run.images = lambda step: pictures  # type: ignore[method-assign]
    losses = [made_run.advance() for _ in range(35)]
    assert losses[-1] < 0.25 * losses[0]
    assert torch.equal(made_run.model.codebook.weight, F.normalize(made_run.codes.total, dim=1))


def test_the_pictures_error_reaches_the_encoder_through_the_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "COMMIT", 0.0)
    run = made(tmp_path, 9)
    reached: list[float] = []
    run.model.encoder.conv_in.weight.register_hook(lambda gradient: reached.append(float(gradient.norm())))
    for _ in range(4):
        run.advance()
    assert len(reached) == 4
    assert min(reached) > 1e-6


def test_pictures_are_a_function_of_seed_and_step() -> None:
    scenes, pictures = data.batch(0, 5, 4)
    again, same = data.batch(0, 5, 4)
    assert scenes == again
    assert (pictures == same).all()
    assert all(context.split == "train" for context in scenes)
    assert (data.batch(0, 6, 4)[1] != pictures).any()
    assert (data.batch(1, 5, 4)[1] != pictures).any()
    caption = scenes[0].caption
    assert (data.fresh([caption, caption])[0] != data.fresh([caption, caption])[1]).any()
    assert (data.fresh([caption])[0] == draw([parse(caption)], [data.FRESH + 7 * 1_000_003])[0]).all()


def test_kmeans_finds_where_points_gather() -> None:
    rng = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.eye(4) + 0.1, dim=1)
    points = F.normalize(centres.repeat(50, 1) + 0.05 * torch.randn(200, 4, generator=rng), dim=1)
    found = codebook.kmeans(points, 4, rng)
    assert (found @ centres.T).amax(1).min() > 0.99
    more = codebook.kmeans(points[:3], 2, rng)
    assert torch.allclose(more.norm(dim=1), torch.ones(2))


def test_averages_follow_the_features_and_dead_codes_start_anew() -> None:
    codes = codebook.Averages(torch.eye(3))
    features = F.normalize(torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]]), dim=1)
    for _ in range(300):
        rows = codes.update(features, torch.tensor([0, 0, 2, 2]))
    torch.testing.assert_close(rows[0], features[0], atol=1e-2, rtol=0)
    torch.testing.assert_close(codes.count, torch.tensor([1.5, 0.0, 1.5]), atol=1e-2, rtol=0)
    assert codes.revive(features, torch.Generator().manual_seed(0)) == 1
    assert codes.count[1] == 1
    assert (features == codes.total[1]).all(1).any()
    assert codes.revive(features, torch.Generator().manual_seed(0)) == 0


def test_what_a_tokenizer_loses_is_measured() -> None:
    class Blank(VQ):
        def decode(self, codes: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(codes), 3, 48, 48)

    found = reconstruction(Blank(VQShape(16, 8, 8, 32, (1, 1, 1), 1)), 4)
    assert (found["right"], found["originals_right"]) == (0, 1)

    class Perfect(VQ):
        def encode(self, pixels: torch.Tensor) -> torch.Tensor:
            self.seen = pixels
            return torch.zeros(len(pixels), 12, 12, dtype=torch.long)

        def decode(self, codes: torch.Tensor) -> torch.Tensor:
            return self.seen

    found = reconstruction(Perfect(VQShape(16, 8, 8, 32, (1, 1, 1), 1)), 4)
    assert (found["right"], found["error"], found["codes_used"]) == (1, 0, 1)
    assert found["code_entropy_nats"] == 0
    pictures = data.fresh(["a small red circle at the top on grey"])
    assert np.abs(to_pixels(pictures).numpy()).max() <= 1


def drawer(folder: Path, steps: int, state: str = "state", *more: str, model: str = "tiny-llamagen") -> DrawerRun:
    where = ["--out", str(folder / model), "--state", str(folder / state), "--corpus", str(folder / "corpus")]
    size = ["--steps", str(steps), "--batch", "3", "--pictures", "2", "--chunks", "2", "--device", "cpu"]
    shape = ["--shape", "dim=16,n_layer=2,n_head=1,ffn_hidden=16"]
    return DrawerRun(options(["--model", model, *size, *where, *shape, *more]))


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK", 8)
    monkeypatch.setattr(corpus.Corpus.__init__, "__kwdefaults__", {"size": 8})


@pytest.mark.usefixtures("few_pictures")
def test_a_drawer_is_exported_as_it_was_trained_and_teaches_another(tmp_path: Path) -> None:
    run = drawer(tmp_path, 3)
    run.train()
    card = json.loads((tmp_path / "tiny-llamagen" / "card.json").read_text())
    assert card["captions"]["pictures"] == 2
    assert card["accuracy"]["sequential"]["captions"] == card["captions"]["right"]
    assert card["captions"]["forwards"] == 144
    page = (tmp_path / "tiny-llamagen" / "README.md").read_text()
    assert page.startswith("# tiny-llamagen")
    assert "| 2 | 0.0% (0.0% to 65.8%) |" in page

    model = pardec.load(tmp_path / "tiny-llamagen", device="cpu").language_model
    said = ["a small red circle left of a large blue square on grey", "a large red circle in the middle on black"]
    codes = torch.randint(256, (2, 144), generator=torch.Generator().manual_seed(0))
    weights = {name: value.bfloat16().float() for name, value in run.average.items()}
    run.model.load_state_dict(weights)
    ids = words.ids(said)
    known = ids != words.PAD
    with torch.no_grad():
        read = run.reader(input_ids=ids, attention_mask=known.long()).last_hidden_state
        network = run.model["drawer"]
        expected = network.output(network.states(*words.right_aligned(read, known), codes))
    for row, caption in enumerate(said):
        prefix = model.imaging.prefix([Condition(text=caption)])
        (places,) = prefix.lengths
        assert places == len(caption.split())
        behind = replace(model, decoder=Conditioned(model.decoder, prefix, [places]))
        fed = torch.cat((torch.full((1, places), -1), codes[row : row + 1, :-1]), 1)
        plan = Plan.full(fed, Visible.causal())
        found = behind.run(plan, behind.new_cache(1, fed.shape[1])).logits()[0, places - 1 :]
        torch.testing.assert_close(found, expected[row], atol=1e-4, rtol=1e-4)

    pupil = drawer(tmp_path, 2, "pupil", "--teacher", str(tmp_path / "tiny-llamagen"), model="tiny-llamagen-draft")
    before = {name: value.clone() for name, value in pupil.reader.state_dict().items()}
    assert pupil.advance() > 0
    assert all(torch.equal(value, before[name]) for name, value in pupil.reader.state_dict().items())


@pytest.mark.usefixtures("few_pictures")
def test_a_drawer_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    check_a_resumed_run(partial(drawer, tmp_path))


@pytest.mark.usefixtures("few_pictures")
def test_a_corpus_is_gone_through_in_another_order_each_time(tmp_path: Path) -> None:
    run = drawer(tmp_path, 4)
    held = run.corpus
    one, same = held.batch(1, 3), held.batch(1, 3)
    assert torch.equal(one.codes, same.codes)
    assert len(list((tmp_path / "corpus").iterdir())) == 1
    steps = held.size // 3 * held.chunks
    assert not torch.equal(held.batch(steps + 1, 3).codes, one.codes)
    scenes, pictures = data.batch(held.seed, corpus.CHUNK_SEEDS, held.size)
    chunk = held.chunk(0)
    assert chunk["captions"].tolist() == words.ids([context.caption for context in scenes]).tolist()
    with torch.inference_mode():
        exact = held.vq.encode(to_pixels(pictures)).flatten(1)
        near = held.vq.rows()[chunk["codes"].long()] - held.vq.rows()[exact]
    assert (chunk["codes"] == exact).float().mean() > 0.7  # encoded in 16 bit: near codes are mistaken for each other
    assert near.norm(dim=-1).mean() < 0.2
    colours = {context.things[0].colour for context in scenes}
    assert set(chunk["shown"].flatten().tolist()) - {corpus.GROUND} >= {list(COLOURS).index(name) for name in colours}


def test_what_captions_say_in_numbers() -> None:
    caption = "a small red circle left of a large blue triangle on white"
    assert words.read(words.ids([caption])) == [caption]
    (row,) = words.attributes([caption]).tolist()
    red, blue = (list(COLOURS).index(name) for name in ("red", "blue"))
    assert row[red] == 1  # small, circle, the first
    assert row[blue] == 1 + 3 + 2 + 6  # large, triangle, the second
    assert sorted(row[:6]) == [0, 0, 0, 0, 1, 12]
    assert row[6:] == [9, 2]  # the first relation after nine places; white
    assert all(value < kinds for value, kinds in zip(row, words.KINDS, strict=True))


@pytest.mark.parametrize("more", [[], ["--steps", "3", "--minutes", "1"], ["--steps", "3", "--model", "tiny-dream"]])
def test_misuse_is_refused(more: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        options(["--model", "tiny-vq", *more])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("model", "more"),
    [("tiny-mar", ["--tokenizer", "x"]), ("tiny-var", ["--teacher", "x"]), ("tiny-vq", ["--compile"])],
)
def test_options_of_other_models_are_refused(model: str, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(["--model", model, "--steps", "1", *more])
    assert f"{more[0]} is an option of tiny-var" in capsys.readouterr().err
