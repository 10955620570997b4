"""The trainers of models of several scales on minute networks: tokenizer, codes, loss, resuming, format."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from image_training import features as corpora  # noqa: E402
from image_training import multiscale as tokenizers  # noqa: E402
from image_training import multiscale_run, run, scale_sampling, var  # noqa: E402
from image_training.export_var import loaded  # noqa: E402
from image_training.multiscale import MultiScaleVQ, Quantizer, Sizes  # noqa: E402
from image_training.scale_network import ScaleNetwork  # noqa: E402
from train_image import options  # noqa: E402

from pardec.models.images.kl import KL  # noqa: E402
from pardec.models.images.kl_files import load_kl, save_kl  # noqa: E402
from pardec.models.images.kl_shape import KLShape  # noqa: E402

torch.set_num_threads(1)
SIZES = Sizes(vocab_size=24, z_channels=4, ch_mult=(1, 1, 1, 1), patch_nums=(1, 2, 6))
OPEN = {"cfg": 0.0, "top_k": 0, "top_p": 0.0, "temperature": 1.0}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiscale_run, "GATHER", 2)
    monkeypatch.setattr(multiscale_run, "ROUNDS", 2)
    monkeypatch.setattr(corpora.FeatureCorpus.__init__, "__kwdefaults__", {"size": 8})


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


def trainer(folder: Path, steps: int, state: str = "state", *more: str, model: str = "tiny-var") -> var.VARRun:
    whole = folder / "vq-state" / "whole"
    if not whole.exists():
        tokenizer(folder, 1).train()
    where = ["--out", str(folder / model), "--state", str(folder / state), "--corpus", str(folder / "corpus")]
    size = ["--steps", str(steps), "--batch", "4", "--pictures", "2", "--chunks", "2", "--device", "cpu"]
    shape = ["--shape", "embed_dim=16,depth=2,num_heads=2"]
    return var.VARRun(options(["--model", model, "--tokenizer", str(whole), *size, *where, *shape, *more]))


# -- the tokenizer ---------------------------------------------------------------------------------------------


def test_a_tokenizer_starts_as_the_autoencoder(folder: Path) -> None:
    kl, start = load_kl(folder / "kl"), tokenizer(folder, 2).model
    pixels = tokenizer(folder, 2).images(0)
    latents = kl.encode(pixels).mean
    with torch.no_grad():
        features = start.features(pixels)
        torch.testing.assert_close(features.permute(0, 2, 3, 1), latents, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(start.pixels(features), kl.decode(latents), atol=1e-4, rtol=1e-4)


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
    args = json.loads((folder / "vq" / "vae.args.json").read_text())
    assert args == SIZES.args()
    back = tokenizers.loaded(folder / "vq-state" / "whole").state_dict()
    for name, value in training.average.items():
        assert torch.equal(back[name], value.bfloat16().float()), name
    card = json.loads((folder / "vq" / "card.json").read_text())
    assert card["reconstruction"] == multiscale_run.reconstruction(tokenizers.loaded(folder / "vq-state" / "whole"), 3)
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
    whole = tokenizers.loaded(folder / "vq-state" / "whole")
    assert torch.equal(tokenizers.loaded(folder / "vq").decode(codes), whole.decode(codes))


def test_a_tokenizer_goes_on_where_it_was_stopped(folder: Path) -> None:
    whole = tokenizer(folder, 4, "whole")
    for _ in range(4):
        whole.advance()
    part = tokenizer(folder, 4, "part")
    for _ in range(2):
        part.advance()
    part.save()
    resumed = tokenizer(folder, 4, "part")
    assert resumed.step == 2
    for _ in range(2):
        resumed.advance()
    for name, value in whole.average.items():
        torch.testing.assert_close(resumed.average[name], value, rtol=0, atol=0)


def test_codes_add_up_to_what_the_last_sum_is() -> None:
    torch.manual_seed(0)
    vq = MultiScaleVQ(SIZES)
    features = torch.randn(3, 4, 6, 6)
    codes, sums, _ = vq.quantize(features)
    assert [part.shape[1] for part in codes] == [1, 4, 36]
    torch.testing.assert_close(vq.total(torch.cat(codes, 1)), sums[-1])
    # A naive first scale: the code nearest to the mean, its vector through phi everywhere.
    mean = features.mean((2, 3))
    nearest = torch.cdist(mean, vq.quantize.embedding.weight).argmin(1)
    assert torch.equal(codes[0][:, 0], nearest)
    flat = vq.quantize.embedding(nearest)[:, :, None, None].expand(-1, -1, 6, 6)
    phi = vq.quantize.phis[0]
    torch.testing.assert_close(sums[0], 0.5 * flat + 0.5 * F.conv2d(flat, phi.weight, phi.bias, padding=1))


def test_scales_share_convolutions_by_the_nearest_tick() -> None:
    assert Quantizer(Sizes()).phi_of == [0, 0, 1, 2, 3, 3]
    assert Quantizer(Sizes(share_quant_resi=1)).phi_of == [0] * 6


def test_codes_that_are_not_used_are_restarted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiscale_run, "EVERY", 1)
    training = tokenizer(folder, 10)
    training.advance()
    training.count[5] = 0.0
    with torch.no_grad():
        training.model.quantize.embedding.weight[5] = 1e3
    training.advance()
    assert training.revived >= 1
    assert training.model.quantize.embedding.weight[5].abs().max() < 1e3


# -- the model -------------------------------------------------------------------------------------------------


def test_a_model_is_exported_under_the_published_names_and_teaches_another(folder: Path) -> None:
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
    taught = folder / "tiny-var"
    pupil = trainer(folder, 2, "pupil", "--teacher", str(taught), model="tiny-var-draft")
    assert pupil.advance() > 0
    again = trainer(folder, 2, "again", "--init", str(taught))
    for name, value in loaded(taught).state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)


def test_a_model_goes_on_where_it_was_stopped(folder: Path) -> None:
    whole = trainer(folder, 4, "whole")
    for _ in range(4):
        whole.advance()
    part = trainer(folder, 4, "part")
    for _ in range(2):
        part.advance()
    part.save()
    resumed = trainer(folder, 4, "part")
    for _ in range(2):
        resumed.advance()
    for name, value in whole.average.items():
        torch.testing.assert_close(resumed.average[name], value, rtol=0, atol=0)


def test_later_codes_are_those_of_what_replaced_ones_leave() -> None:
    torch.manual_seed(0)
    quantizer = Quantizer(SIZES)
    features, rng = torch.randn(3, 4, 6, 6), torch.Generator().manual_seed(1)
    codes, maps = corpora.walk(quantizer, features, torch.zeros(3), rng)
    plain, sums, _ = quantizer(features)
    assert torch.equal(codes, torch.cat(plain, 1))
    torch.testing.assert_close(maps[:, :4], F.adaptive_avg_pool2d(sums[0], 2).flatten(2).mT)
    torch.testing.assert_close(maps[:, 4:], sums[1].flatten(2).mT)
    codes, maps = corpora.walk(quantizer, features, torch.ones(3), rng)
    assert torch.equal(codes[:, :1], plain[0])
    # The second sum is read off what the last scale sees; its codes are the nearest to what it leaves.
    left = features.flatten(2).mT - maps[:, 4:]
    assert torch.equal(codes[:, 5:], torch.cdist(left, quantizer.embedding.weight).argmin(-1))
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


def test_a_draft_model_counts_late_scales(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(var, "LATE", 2)
    weight = trainer(folder, 2, "draft", model="tiny-var-draft").weight
    assert float(weight.mean()) == pytest.approx(1)
    assert weight[:5] / weight[5] == pytest.approx(torch.full((5,), var.EARLY))
    assert torch.equal(trainer(folder, 2).weight, torch.ones(41))


def test_a_model_learns_one_batch_by_heart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WARMUP", 5)
    monkeypatch.setattr(var, "REPLACED", 0.0)
    training = trainer(folder, 400)
    batch = training.corpus.batch(0, 4)
    training.corpus.batch = lambda step, count: batch  # type: ignore[method-assign]
    losses = [training.advance() for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:3])


def test_samples_follow_the_distribution_of_each_scale(folder: Path) -> None:
    training = trainer(folder, 2)
    network, vq = training.model.eval(), training.vq
    with torch.no_grad():
        network.head.weight.normal_()
    rows = 4000
    labels = torch.full((rows,), 5)
    codes = scale_sampling.sample([network] * 3, vq, labels, torch.Generator().manual_seed(0), **OPEN)
    assert codes.shape == (rows, 41)
    with torch.no_grad():
        first = network(labels[:1], torch.zeros(1, 0, 4))[0, 0].softmax(-1)
    seen = torch.bincount(codes[:, 0], minlength=24) / rows
    assert float((seen - first).abs().sum() / 2) < 0.05
    other = ScaleNetwork(training.config)
    with torch.no_grad():
        other.initialise()
        other.head.bias[7] = 100.0  # draws nothing else
    codes = scale_sampling.sample([network, network, other], vq, labels[:3], torch.Generator().manual_seed(0), **OPEN)
    assert (codes[:, 5:] == 7).all()
    assert not (codes[:, :5] == 7).all()


def test_a_draft_model_is_measured_behind_the_large_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(folder, 1).train()
    draft = trainer(folder, 1, "draft", model="tiny-var-draft")
    monkeypatch.setitem(var.measured.__kwdefaults__, "large", folder / "tiny-var")
    asked: list[list[bool]] = []
    plain = var.right_of

    def record(networks: list[ScaleNetwork], *args: object, **more: object) -> dict[str, object]:
        asked.append([network is networks[-1] for network in networks])
        return plain(networks, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(var, "right_of", record)
    draft.train()
    assert asked == [[True, True, True], [False, False, True]]
    card = json.loads((folder / "tiny-var-draft" / "card.json").read_text())
    assert card["classes"]["late"]["from"] == 2
    page = (folder / "tiny-var-draft" / "README.md").read_text()
    assert "| from 2 (from 0), tiny-var those before | 2 |" in page
    assert "-s code:draft=tiny-var-draft" in page


def test_filters_keep_the_likely_codes() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert scale_sampling.kept(logits, 2, 0.0).isfinite().tolist() == [[True, True, False, False]]
    assert scale_sampling.kept(logits, 0, 0.65).isfinite().tolist() == [[True, True, False, False]]
    assert scale_sampling.kept(logits, 0, 0.01).isfinite().tolist() == [[True, False, False, False]]
    assert torch.equal(scale_sampling.kept(logits, 0, 0.0), logits)
