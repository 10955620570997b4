"""The trainers of models of vectors on tiny networks: autoencoder, latents, masks, loss, resuming, format."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from image_training import latents as corpora
from image_training import mar, painted
from image_training.autoencoder import AutoencoderRun, apart, spread
from image_training.evaluate import kept
from image_training.export_mar import loaded, published
from image_training.run import Training
from safetensors.torch import load_file
from torch.distributions import Normal, kl_divergence
from train_image import options

import pardec
from pardec.images.classes import Score, score
from pardec.models.continuous.diffusion_head import denoising
from pardec.models.images.kl import (
    KL,
    KLShape,
    Latents,
    load_kl,
    save_kl,
)
from tests.resumed import check_a_resumed_run

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("without_autocast")
SHAPE = KLShape(4, 32, (1, 1, 1), 1, ())


def autoencoder(folder: Path, steps: int, state: str = "state") -> AutoencoderRun:
    where = ["--out", str(folder / "kl"), "--state", str(folder / state), "--device", "cpu"]
    shape = ["--shape", "embed_dim=4,ch_mult=1-1-1,attention=0-2"]
    return AutoencoderRun(
        options(["--model", "tiny-kl", "--steps", str(steps), "--batch", "2", "--pictures", "3", *shape, *where])
    )


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("image_training.autoencoder.MEASURED", 4)
    monkeypatch.setattr(corpora.LatentCorpus.__init__, "__kwdefaults__", {"size": 8})
    monkeypatch.setitem(painted.painted_right.__kwdefaults__, "sampler", "mar:steps=2")


@pytest.mark.usefixtures("with_autocast")
def test_an_autoencoder_is_exported_as_it_was_trained(tmp_path: Path) -> None:
    made = autoencoder(tmp_path, 3)
    made.train()
    found = load_file(tmp_path / "kl" / "kl.safetensors")
    assert all(value.dtype is torch.bfloat16 for value in found.values())
    model = load_kl(tmp_path / "kl")
    assert model.shape == KLShape(4, 32, (1, 1, 1), 1, (0, 2))
    for name, value in model.state_dict().items():
        assert torch.equal(value, made.average[name].bfloat16().float()), name
    card = json.loads((tmp_path / "kl" / "card.json").read_text())
    assert card["reconstruction"] == kept(model, 3)
    assert card["reconstruction"]["originals_right"] == 1
    assert abs(spread(model) - 1) < 1e-3  # scaled as it is exported
    assert f"scale: {model.scale:g}," in (tmp_path / "kl" / "README.md").read_text()
    assert card["parameters"] == sum(value.numel() for value in model.parameters())


def test_an_autoencoder_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    check_a_resumed_run(partial(autoencoder, tmp_path))


def test_an_autoencoder_learns_two_pictures_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "warmup", 5)
    made = autoencoder(tmp_path, 60)
    pictures = made.images(0)
    made.images = lambda step: pictures  # type: ignore[method-assign]
    losses = [made.advance() for _ in range(14)]
    assert losses[-1] < 0.7 * losses[0]


def test_latents_pay_for_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    mean, deviation = torch.randn(2, 3, generator=rng), torch.rand(2, 3, generator=rng) + 0.1
    wanted = kl_divergence(Normal(mean, deviation), Normal(0.0, 1.0)).sum()
    torch.testing.assert_close(apart(mean, deviation), wanted)
    pushed = []
    for weight in (0.0, 100.0):
        monkeypatch.setattr("image_training.autoencoder.NARROW", weight)
        monkeypatch.setattr("image_training.autoencoder.FREE", -1000)
        made = autoencoder(tmp_path, 9, f"weight-{weight}")
        made.model.network.quant_conv.bias.register_hook(lambda gradient: pushed.append(gradient[4:]))
        made.advance()
    assert (pushed[1] < 0).all()  # deviations start small, and are pushed up
    assert not (pushed[0] < 0).all() or pushed[0].norm() < 0.01 * pushed[1].norm()


def test_what_an_autoencoder_loses_is_measured() -> None:
    class Perfect(KL):
        noisy = False

        def encode(self, pixels: torch.Tensor) -> Latents:
            flat = pixels.flatten(1)[:, None, None]
            return Latents(flat, torch.full_like(flat, 3.0 if self.noisy else 0.0))

        def decode(self, latents: torch.Tensor) -> torch.Tensor:
            return latents.reshape(-1, 3, 48, 48)

    perfect = Perfect(SHAPE)
    found = kept(perfect, 4)
    assert (found["right"], found["right_sampled"], found["error"]) == (1, 1, 0)
    perfect.noisy = True
    found = kept(perfect, 4)
    assert (found["right"], found["right_sampled"]) == (1, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    (tmp_path / "kl").mkdir()
    save_kl(KL(SHAPE, scale=0.7), tmp_path / "kl" / "kl.safetensors")
    return tmp_path


def trainer(folder: Path, steps: int, state: str = "state", *more: str, model: str = "tiny-mar") -> mar.MARRun:
    where = ["--out", str(folder / model), "--state", str(folder / state), "--corpus", str(folder / "corpus")]
    size = ["--steps", str(steps), "--batch", "4", "--pictures", "2", "--chunks", "2", "--device", "cpu"]
    shape = ["--shape", "width=16,depth=1,heads=2,diffloss_d=1,diffloss_w=16"]
    named = ["--model", model, "--autoencoder", str(folder / "kl")]
    return mar.MARRun(options([*named, *size, *where, *shape, *more]))


def test_a_model_is_exported_under_the_published_names_and_teaches_another(folder: Path) -> None:
    made = trainer(folder, 2)
    made.train()
    found = load_file(folder / "tiny-mar" / "model.safetensors")
    assert all(value.dtype is torch.bfloat16 for value in found.values())
    assert found["class_emb.weight"].shape == (36, 16)
    assert found["encoder_pos_embed_learned"].shape == (1, 8 + 144, 16)
    assert found["decoder_blocks.0.attn.qkv.bias"].shape == (48,)
    assert found["diffloss.net.res_blocks.0.adaLN_modulation.1.weight"].shape == (48, 16)
    assert found["diffloss.net.final_layer.linear.weight"].shape == (8, 16)
    for name, value in made.average.items():
        assert torch.equal(found[published(name)], value.bfloat16()), name
    config = json.loads((folder / "tiny-mar" / "config.json").read_text())
    assert (config["model_type"], config["vae_stride"], config["vae_embed_dim"]) == ("mar", 4, 4)
    card = json.loads((folder / "tiny-mar" / "card.json").read_text())
    assert card["classes"]["pictures"] == 2
    assert card["accuracy"]["mar"]["classes"] == card["classes"]["right"]
    assert "| 2 | 0.0% (0.0% to 65.8%) |" in (folder / "tiny-mar" / "README.md").read_text()
    taught = folder / "tiny-mar"
    pupil = trainer(folder, 2, "pupil", "--teacher", str(taught), model="tiny-mar-draft")
    assert pupil.advance() > 0
    again = trainer(folder, 2, "again", "--init", str(taught))
    for name, value in loaded(taught).state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)


def test_a_model_goes_on_where_it_was_stopped(folder: Path) -> None:
    check_a_resumed_run(partial(trainer, folder))


def test_latents_are_those_of_pictures_of_their_classes(folder: Path) -> None:
    made = trainer(folder, 4)
    held = made.corpus
    one, same = held.batch(1, 4), held.batch(1, 4)
    assert torch.equal(one.latents.mean, same.latents.mean)
    assert one.latents.mean.shape == (4, 144, 4)
    assert len(list((folder / "corpus").iterdir())) == 1
    assert not torch.equal(held.batch(4 + 1, 4).latents.mean, one.latents.mean)  # the chunks again, in another order
    assert sorted(held.batch(4, 8).labels.tolist()) == sorted(held.chunk(0)["labels"].tolist())

    class Plain(KL):
        def encode(self, pixels: torch.Tensor) -> Latents:
            flat = pixels.flatten(1)[:, None, None]
            return Latents(flat, flat)

    plain = corpora.LatentCorpus(folder / "plain", Plain(SHAPE), seed=0, chunks=1, size=40)
    chunk = plain.chunk(0)
    pixels = chunk["mean"].float().reshape(-1, 3, 48, 48)
    pictures = ((pixels + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    assert all(one.right for one in score(np.ascontiguousarray(pictures), chunk["labels"].tolist()))


def test_masks_follow_a_normal_law_about_all() -> None:
    counts = np.array([mar.masked_of(step, 36) for step in range(5000)])
    assert (counts.min(), counts.max()) == (1, 36)
    rng = np.random.default_rng(0)
    render = 1 - np.abs(rng.normal(0, mar.SPREAD, 200_000))
    render = np.ceil(36 * render[render > 0])
    for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert abs(np.quantile(counts, quantile) - np.quantile(render, quantile)) <= 1


def test_only_tokens_that_are_masked_are_told_and_only_known_ones_seen(folder: Path) -> None:
    made = trainer(folder, 4)
    batch = made.corpus.batch(0, 4)
    told: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    predict = made.predicted_noise

    def listen(model, latents, known, labels, points, times):  # type: ignore[no-untyped-def]
        told.append((known, points, times))
        return predict(model, latents, known, labels, points, times)

    made.predicted_noise = listen  # type: ignore[method-assign]
    made.step = 3
    made.loss_of(batch)
    ((known, points, times),) = told
    masked = mar.masked_of(3, 144)
    assert (~known).sum(1).tolist() == [masked] * 4
    assert len(points) == mar.LEVELS * 4 * masked
    levels = times.reshape(mar.LEVELS, -1) // 250
    assert all(set(row.tolist()) == {number} for number, row in enumerate(levels))


def test_the_bound_is_the_divergence_from_the_true_transition(folder: Path) -> None:
    made = trainer(folder, 4)
    rng = torch.Generator().manual_seed(1)
    times = torch.tensor([0, 1, 5, 400, 998])
    clean, noise, said = (torch.randn(5, 4, generator=rng) for _ in range(3))
    share = torch.rand(5, 4, generator=rng) * 2 - 1
    table = denoising(1000)
    total = 0.0
    for row, time in enumerate(times.tolist()):
        alpha_bar, beta = float(table.alpha_bar[time]), float(table.betas[time])
        before = float(table.alpha_bar[time - 1]) if time else 1.0
        point = math.sqrt(alpha_bar) * clean[row] + math.sqrt(1 - alpha_bar) * noise[row]
        guess = (point - math.sqrt(1 - alpha_bar) * said[row]) / math.sqrt(alpha_bar)
        least = math.log(max(beta * (1 - before) / (1 - alpha_bar), 1e-30))
        if time == 0:
            least = float(table.log_least[1])
        f = (share[row] + 1) / 2
        deviation = (0.5 * (f * math.log(beta) + (1 - f) * least)).exp()

        def mean(token: torch.Tensor, p: torch.Tensor = point, b: float = before, a: float = alpha_bar) -> torch.Tensor:
            keep = a / b
            return (math.sqrt(b) * (1 - keep) * token + math.sqrt(keep) * (1 - b) * p) / (1 - a)

        if time == 0:
            total += float(-Normal(guess, deviation).log_prob(clean[row]).mean())
        else:
            true = Normal(mean(clean[row]), math.exp(least / 2))
            total += float(kl_divergence(true, Normal(mean(guess), deviation)).mean())
    points = table.alpha_bar[times].float().sqrt()[:, None] * clean
    points = points + (1 - table.alpha_bar[times].float()).sqrt()[:, None] * noise
    found = made.bound(said, share, clean, points, times)
    assert float(found) == pytest.approx(total / 5 / math.log(2), rel=1e-3)


def test_a_model_learns_one_picture_by_heart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "warmup", 5)
    made = trainer(folder, 400)
    fixed = made.corpus.batch(0, 4)
    still = Latents(fixed.latents.mean, torch.zeros_like(fixed.latents.deviation))
    batch = corpora.Batch(fixed.labels, still)
    made.corpus.batch = lambda step, count: batch  # type: ignore[method-assign]
    losses = [made.advance() for _ in range(40)]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:3])


def test_what_is_exported_draws_as_it_was_trained(folder: Path) -> None:
    made = trainer(folder, 2)
    made.train()
    model = pardec.load(folder / "tiny-mar", device="cpu", decoder=str(folder / "kl")).network
    rng = torch.Generator().manual_seed(0)
    latents = torch.randn(2, 144, 4, generator=rng)
    known = torch.rand(2, 144, generator=rng) < 0.3
    labels = torch.tensor([-1, 7])
    made.model.load_state_dict({name: value.bfloat16().float() for name, value in made.average.items()})
    with torch.no_grad():
        network = made.model
        wanted = network.head.cond_embed(network.backbone(latents, known, labels)[~known])
    found = model.backbone.states(latents, known, labels, ~known).cond
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_classes_are_painted_in_turn_and_scored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(folder, 1).train()
    asked: list[list[int]] = []

    def perfect(pictures: np.ndarray, labels: list[int]) -> list[Score]:
        asked.append(list(labels))
        assert pictures.shape == (len(labels), 48, 48, 3)
        return [Score(label != 1, True, True, True, label != 1) for label in labels]

    monkeypatch.setattr(painted, "score", perfect)
    monkeypatch.setattr(painted, "TOGETHER", 2)
    found = painted.painted_right(folder / "tiny-mar", 4, decoder=folder / "kl")
    assert asked == [[0, 1, 2, 3]]
    assert (found["right"], found["size"], found["colour"], found["forwards"]) == (0.75, 0.75, 1, 2)
    assert found["settings"] == "mar:steps=2, temperature 1, cfg 3"
