"""The trainers of models of several scales on tiny networks: tokenizer, codes, loss, resuming, format."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from image_training import export_var, multiscale_run, scale_draft, var
from image_training import features as corpora
from image_training.export_var import loaded
from image_training.multiscale import features, quantize
from image_training.multiscale import tokenizer as untrained
from image_training.run import Training
from safetensors.torch import load_file
from train_image import RUNS, options

import pardec
from pardec.models.images.kl import (
    KL,
    KLShape,
    load_kl,
    save_kl,
)
from pardec.models.scales.contracts import Scales
from pardec.models.scales.tokenizer import TokenizerShape
from pardec.models.scales.tokenizer_files import load_tokenizer
from tests.resumed import check_a_resumed_run

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("without_autocast")
SIZES = {"vocab_size": 24, "z_channels": 4, "ch_mult": (1, 1, 1, 1), "patch_nums": (1, 2, 6)}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiscale_run, "GATHER", 2)
    monkeypatch.setattr(multiscale_run, "ROUNDS", 2)
    monkeypatch.setattr(corpora.FeatureCorpus.__init__, "__kwdefaults__", {"size": 8})
    monkeypatch.setattr(scale_draft.TeacherCorpus.__init__, "__kwdefaults__", {"size": 8})
    monkeypatch.setitem(export_var.DEFAULTS, "top_k", 24)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    (tmp_path / "kl").mkdir()
    save_kl(KL(KLShape(4, 32, (1, 1, 1, 1), 1, (3,)), scale=0.7), tmp_path / "kl" / "kl.safetensors")
    return tmp_path


def tokenizer(folder: Path, steps: int, state: str = "vq-state") -> multiscale_run.MultiScaleRun:
    where = ["--out", str(folder / "vq"), "--state", str(folder / state), "--device", "cpu"]
    shape = ["--shape", "vocab_size=24,z_channels=4,ch_mult=1-1-1-1,patch_nums=1-2-6"]
    size = ["--steps", str(steps), "--batch", "2", "--pictures", "3", "--autoencoder", str(folder / "kl")]
    return multiscale_run.MultiScaleRun(options(["--model", "tiny-var-vq", *size, *shape, *where]))


def trainer(folder: Path, steps: int, state: str = "state", *more: str, model: str = "tiny-var") -> Any:
    whole = folder / "vq-state" / "whole"
    if not whole.exists():
        tokenizer(folder, 1).train()
    where = ["--out", str(folder / model), "--state", str(folder / state), "--corpus", str(folder / "corpus")]
    size = ["--steps", str(steps), "--batch", "4", "--pictures", "2", "--chunks", "2", "--device", "cpu"]
    shape = ["--shape", "embed_dim=16,depth=2,num_heads=2"]
    return RUNS[model](options(["--model", model, "--tokenizer", str(whole), *size, *where, *shape, *more]))


# -- the tokenizer ---------------------------------------------------------------------------------------------


def test_a_tokenizer_starts_as_the_autoencoder(folder: Path) -> None:
    kl, start = load_kl(folder / "kl"), tokenizer(folder, 2).model
    pixels = tokenizer(folder, 2).images(0)
    latents = kl.encode(pixels).mean
    with torch.no_grad():
        goal = features(start, pixels)
        torch.testing.assert_close(goal.permute(0, 2, 3, 1), latents, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(start.pixels(goal), kl.decode(latents).clamp(-1, 1), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("with_autocast")
def test_a_tokenizer_is_exported_under_the_published_names(folder: Path) -> None:
    training = tokenizer(folder, 2)
    training.train()
    tensors = load_file(folder / "vq-state" / "whole" / "vae.safetensors")
    assert all(value.dtype is torch.bfloat16 for value in tensors.values())
    assert tensors["quantize.embedding.weight"].shape == (24, 4)
    assert tensors["quantize.quant_resi.qresi_ls.3.weight"].shape == (4, 4, 3, 3)
    assert tensors["encoder.down.3.attn.0.qkv.weight"].shape == (96, 32, 1, 1)
    assert tensors["decoder.up.3.attn.1.proj_out.weight"].shape == (32, 32, 1, 1)
    assert tensors["decoder.mid.attn_1.norm.weight"].shape == (32,)
    back = load_tokenizer(folder / "vq-state" / "whole")
    assert (back.shape, back.scales) == (training.model.shape, Scales((1, 2, 6)))
    assert back.shape == TokenizerShape(24, 4, 32, (1, 1, 1, 1), 1)
    state = back.state_dict()
    for name, value in training.average.items():
        assert torch.equal(state[name], value.bfloat16().float()), name
    card = json.loads((folder / "vq" / "card.json").read_text())
    assert card["reconstruction"] == multiscale_run.reconstruction(back, 3)
    assert card["reconstruction"]["originals_right"] == 1
    assert len(card["reconstruction"]["right_by_scale"]) == 3


def test_what_ships_decodes_the_same_without_the_encoder(folder: Path) -> None:
    tokenizer(folder, 1).train()
    tensors = load_file(folder / "vq" / "vae.safetensors")
    assert not [name for name in tensors if name.startswith(("encoder.", "quant_conv."))]
    card = json.loads((folder / "vq" / "card.json").read_text())
    assert card["parameters"] == sum(value.numel() for value in tensors.values())
    assert "the encoder is left out" in (folder / "vq" / "README.md").read_text()
    codes = torch.randint(24, (2, 41), generator=torch.Generator().manual_seed(0))
    whole = load_tokenizer(folder / "vq-state" / "whole")
    assert torch.equal(load_tokenizer(folder / "vq").decode(codes), whole.decode(codes))


def test_a_tokenizer_goes_on_where_it_was_stopped(folder: Path) -> None:
    check_a_resumed_run(partial(tokenizer, folder))


def test_codes_add_up_to_what_the_last_sum_is() -> None:
    torch.manual_seed(0)
    vq = untrained(SIZES)
    pixels = torch.rand(3, 3, 48, 48) * 2 - 1
    with torch.no_grad():
        codes, sums, _ = quantize(vq, features(vq, pixels))
        assert [part.shape[1] for part in codes] == [1, 4, 36]
        assert torch.equal(torch.cat(codes, 1), vq.encode(pixels))
        torch.testing.assert_close(vq.decode(torch.cat(codes, 1)), vq.pixels(sums[-1]), atol=1e-4, rtol=1e-4)


def test_codes_that_are_not_used_are_restarted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiscale_run, "EVERY", 1)
    training = tokenizer(folder, 10)
    training.advance()
    training.count[5] = 0.0
    with torch.no_grad():
        training.model.codebook.weight[5] = 1e3
    training.advance()
    assert training.revived >= 1
    assert training.model.codebook.weight[5].abs().max() < 1e3


# -- the model -------------------------------------------------------------------------------------------------


def test_a_model_is_exported_under_the_published_names_and_goes_on(folder: Path) -> None:
    training = trainer(folder, 2)
    training.train()
    tensors = load_file(folder / "tiny-var" / "model.safetensors")
    assert all(value.dtype is torch.bfloat16 for value in tensors.values())
    assert tensors["class_emb.weight"].shape == (37, 16)
    assert tensors["pos_1LC"].shape == (1, 41, 16)
    assert tensors["blocks.1.attn.scale_mul_1H11"].shape == (1, 2, 1, 1)
    assert tensors["blocks.0.ada_lin.1.weight"].shape == (96, 16)
    assert tensors["head_nm.ada_lin.1.weight"].shape == (32, 16)
    for name, value in loaded(folder / "tiny-var").state_dict().items():
        assert torch.equal(value, training.average[name].bfloat16().float()), name
    config = json.loads((folder / "tiny-var" / "config.json").read_text())
    assert (config["model_type"], config["patch_nums"], config["image_tokenizer"]) == ("var", [1, 2, 6], "tiny-var-vq")
    card = json.loads((folder / "tiny-var" / "card.json").read_text())
    assert card["classes"]["pictures"] == 2
    assert card["accuracy"]["sequential"]["classes"] == card["classes"]["right"]
    again = trainer(folder, 2, "again", "--init", str(folder / "tiny-var"))
    for name, value in loaded(folder / "tiny-var").state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    assert again.card({})["recipe"]["run before"] == card["recipe"]


def test_a_model_goes_on_where_it_was_stopped(folder: Path) -> None:
    check_a_resumed_run(partial(trainer, folder))


def test_later_codes_are_those_of_what_replaced_ones_leave() -> None:
    torch.manual_seed(0)
    vq = untrained(SIZES)
    goal, rng = torch.randn(3, 4, 6, 6), torch.Generator().manual_seed(1)
    codes, maps = corpora.targets_and_inputs(vq, goal, torch.zeros(3), rng)
    plain, sums, _ = quantize(vq, goal)
    assert torch.equal(codes, torch.cat(plain, 1))
    torch.testing.assert_close(maps[:, :4], F.adaptive_avg_pool2d(sums[0], 2).flatten(2).mT)
    torch.testing.assert_close(maps[:, 4:], sums[1].flatten(2).mT)
    codes, maps = corpora.targets_and_inputs(vq, goal, torch.ones(3), rng)
    assert torch.equal(codes[:, :1], plain[0])
    # The second sum is read off what the last scale sees; its codes are the nearest to what it leaves.
    left = goal.flatten(2).mT - maps[:, 4:]
    assert torch.equal(codes[:, 5:], torch.cdist(left, vq.codebook.weight).argmin(-1))
    assert not torch.equal(codes[:, 5:], plain[2])


def test_no_scale_sees_a_later_one_and_a_shorter_forward_is_the_same(folder: Path) -> None:
    network = trainer(folder, 2).model.eval()
    torch.manual_seed(1)
    maps, labels = torch.randn(2, 40, 4), torch.tensor([3, 36])
    with torch.no_grad():
        full = network(labels, maps)
        torch.testing.assert_close(network(labels, maps[:, :4]), full[:, :5])
        other = maps.clone()
        other[:, 4:] += 1
        assert torch.equal(network(labels, other)[:, :5], full[:, :5])
        other[:, 39] += 1  # codes of one scale see each other
        assert not torch.equal(network(labels, other)[:, 5], full[:, 5])


def test_what_is_exported_predicts_as_it_was_trained(folder: Path) -> None:
    training = trainer(folder, 2)
    training.train()
    model = pardec.load(folder / "tiny-var", device="cpu", decoder=str(folder / "vq")).network
    network = loaded(folder / "tiny-var")
    torch.manual_seed(1)
    maps, labels, starts = torch.randn(2, 40, 4), torch.tensor([3, 36]), model.scales.starts
    with torch.no_grad():
        wanted = network(labels, maps)
        cache = model.transformer.new_cache(2)
        for scale in range(3):
            own = maps[:, max(starts[scale] - 1, 0) : starts[scale + 1] - 1]
            seen = model.transformer(labels, own, cache, first=scale, last=scale)
            torch.testing.assert_close(seen, wanted[:, starts[scale] : starts[scale + 1]], atol=1e-5, rtol=1e-5)


def draft(folder: Path, steps: int, *more: str) -> Any:
    where = ["--teacher", str(folder / "tiny-var"), "--corpus", str(folder / "drawn")]
    return trainer(folder, steps, "draft", *where, *more, model="tiny-var-draft")


def test_a_draft_model_counts_late_scales(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(folder, 1).train()
    monkeypatch.setattr(scale_draft, "LATE", 2)
    weight = draft(folder, 2).weight
    assert float(weight.mean()) == pytest.approx(1)
    assert weight[:5] / weight[5] == pytest.approx(torch.full((5,), scale_draft.EARLY))


def test_a_draft_model_learns_what_the_large_one_and_itself_draw(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_draft, "LATE", 2)
    trainer(folder, 1).train()
    large = folder / "tiny-var"
    run_ = draft(folder, 2, "--refiner", str(large))
    rows = [run_.corpus.chunk(number) for number in range(2)]
    assert "in half of them" in run_.learned()["data"]
    network = loaded(large)
    for held in rows:
        labels, codes = held["labels"].long(), held["codes"].long()
        assert codes.shape == (8, 41)
        assert 0 <= int(codes.min()) <= int(codes.max()) < 24
        maps = scale_draft.inputs(run_.vq, codes)
        for half, label in enumerate((labels, torch.full_like(labels, 36))):
            wanted = network(label, maps)
            torch.testing.assert_close(held["logits"][:, half].float(), wanted, atol=0.05, rtol=0.05)
    # The codes are those of `sequential`: the same seeds give them again.
    model = pardec.load(large, device="cpu", decoder=str(folder / "vq"))
    settings = {**export_var.DEFAULTS, "top_k": 24}
    seeds = [1_000_003 + row for row in range(8)]
    result = model.generate(label=list(range(8)), sampler="sequential", seed=seeds, **settings)
    assert np.array_equal(result.tokens, rows[0]["codes"].numpy())
    # Against itself it has nothing to learn.
    run_.forward = network
    assert float(run_.loss_of(run_.corpus.batch(0, 4))[0]) < 1e-2
    strong = run_.guided(torch.stack((torch.ones(1, 41, 24), torch.zeros(1, 41, 24)), 1))[0, 0, :, 0]
    assert strong.tolist() == [1.0] + [2.5] * 4 + [4.0] * 36  # 1 + t of each scale, where t is 0, 1.5 and 3


def test_a_model_learns_one_batch_by_heart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "warmup", 5)
    monkeypatch.setattr(var, "REPLACED", 0.0)
    training = trainer(folder, 400)
    batch = training.corpus.batch(0, 4)
    training.corpus.batch = lambda step, count: batch  # type: ignore[method-assign]
    losses = [training.advance() for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:3])


def test_a_draft_model_is_measured_behind_the_large_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(folder, 1).train()
    monkeypatch.setattr(var, "LATE", 2)
    monkeypatch.setattr(var, "TOKENIZER", str(folder / "vq"))
    monkeypatch.setitem(var.measured.__kwdefaults__, "large", folder / "tiny-var")
    draft(folder, 1).train()
    card = json.loads((folder / "tiny-var-draft" / "card.json").read_text())
    assert (card["classes"]["forwards"], card["classes"]["late"]["forwards"]) == (3, 2)
    page = (folder / "tiny-var-draft" / "README.md").read_text()
    assert "| tiny-var-draft: sequential, cfg 3, top_k 24" in page
    assert "| tiny-var: code:refiner=tiny-var-draft,steps=2, cfg 3, top_k 24" in page
    assert "-s code:refiner=tiny-var-draft,steps=3" in page
