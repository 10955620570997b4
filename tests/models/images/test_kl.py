"""The KL autoencoder compared with a plain version on the published tensors; accepted and refused files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.errors import ModelError, UnknownModelError
from pardec.models.images.kl import KL, SCALE, KLShape, Latents, load_kl, published_tensors, save_kl
from tests.reference import naive_kl

SHAPES = [
    KLShape(16, 32, (1, 1, 2), 1, (2,)),  # a level that widens, attention at the lowest: as the published one
    KLShape(4, 32, (1, 2), 2, (0, 1)),
    KLShape(3, 64, (1,), 1, ()),  # no halving at all
]


def made(shape: KLShape, scale: float = SCALE) -> KL:
    torch.manual_seed(0)
    model = KL(shape, scale=scale).eval().requires_grad_(False)
    for value in model.parameters():  # norms and biases too, which start at ones and zeros
        value.add_(0.05 * torch.randn_like(value))
    return model


def published_file(
    tmp_path: Path, shape: KLShape, name: str = "kl.ckpt", **more: Tensor
) -> tuple[Path, dict[str, Tensor]]:
    """A file as its authors write it: a pickle with the tensors under "model"."""
    tensors = published_tensors(made(shape))
    torch.save({"model": {**tensors, **more}}, tmp_path / name)
    return tmp_path / name, tensors


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.ch_mult))
def test_it_computes_what_its_published_tensors_say(shape: KLShape, tmp_path: Path) -> None:
    file, tensors = published_file(tmp_path, shape)
    model, levels = load_kl(file), len(shape.ch_mult)
    assert model.shape == shape
    assert (model.downsample, model.channels, model.scale) == (2 ** (levels - 1), shape.embed_dim, 0.2325)
    side = 4 * shape.downsample
    pixels = torch.rand(2, 3, side, side + shape.downsample) * 2 - 1
    mean, deviation = (0.2325 * part.movedim(1, -1) for part in naive_kl.moments(tensors, pixels, levels))
    found = model.encode(pixels)
    assert found.mean.shape == (2, 4, 5, shape.embed_dim)
    torch.testing.assert_close(found.mean, mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.deviation, deviation, atol=1e-5, rtol=1e-5)
    latents = torch.randn(2, 4, 5, shape.embed_dim)
    wanted = naive_kl.pixels(tensors, latents.movedim(-1, 1) / 0.2325, levels)
    assert wanted.shape == pixels.shape
    torch.testing.assert_close(model.decode(latents), wanted, atol=1e-5, rtol=1e-5)


def test_a_sample_lies_as_far_from_the_mean_as_its_noise_says() -> None:
    latents = Latents(torch.tensor([1.0, 2]), torch.tensor([0.5, 0.0]))
    assert latents.sample(torch.tensor([-2.0, 9])).tolist() == [0, 2]


def test_names_are_those_of_the_published_file() -> None:
    names = set(published_tensors(made(SHAPES[0])))
    for name in (
        "encoder.conv_in.weight",
        "encoder.down.2.attn.0.proj_out.weight",
        "encoder.down.1.downsample.conv.bias",
        "encoder.down.2.block.0.nin_shortcut.weight",
        "encoder.mid.attn_1.k.weight",
        "encoder.norm_out.weight",
        "quant_conv.weight",
        "post_quant_conv.bias",
        "decoder.mid.block_2.conv2.weight",
        "decoder.up.2.block.1.conv1.weight",
        "decoder.up.1.block.0.nin_shortcut.weight",
        "decoder.up.2.upsample.conv.weight",
        "decoder.conv_out.bias",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("decoder.up.0.upsample", "encoder.down.2.downsample"))]
    tensors = published_tensors(made(SHAPES[0]))
    assert tensors["encoder.mid.attn_1.q.weight"].shape == (64, 64, 1, 1)
    assert tensors["decoder.up.2.block.0.conv1.weight"].shape[:2] == (64, 64)
    assert tensors["decoder.up.1.block.0.conv1.weight"].shape[:2] == (32, 64)


def test_a_saved_file_reads_back_with_its_scale(tmp_path: Path) -> None:
    model = made(SHAPES[0], scale=0.9)
    for name in ("kl.safetensors", "kl.pt"):
        save_kl(model, tmp_path / name)
        again = load_kl(tmp_path / name)
        assert again.scale == 0.9
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key
        (tmp_path / name).rename(tmp_path / f"other-{name}")
    assert load_kl(tmp_path / "other-kl.pt").scale == SCALE  # nothing lies beside it now
    assert load_kl(tmp_path / "other-kl.pt", scale=2.0).scale == 2.0
    half = load_kl(tmp_path / "other-kl.pt", dtype=torch.bfloat16)
    assert half.decode(torch.zeros(1, 2, 2, 16)).dtype is torch.float32
    assert half.encode(torch.zeros(1, 3, 8, 8)).deviation.dtype is torch.float32


def test_what_has_no_part_in_it_is_passed_over(tmp_path: Path) -> None:
    other = torch.zeros(1)
    file, tensors = published_file(
        tmp_path,
        SHAPES[0],
        **{"loss.logvar": other, "decoder.up.2.attn.0.q.weight": other, "loss.discriminator.a": other},
    )
    assert published_tensors(load_kl(file)).keys() == tensors.keys()


def test_without_an_encoder_it_decodes_and_says_so(tmp_path: Path) -> None:
    whole = made(SHAPES[0])
    kept = {name: value for name, value in published_tensors(whole).items() if not name.startswith("encoder.")}
    save_file({name: value.contiguous() for name, value in kept.items()}, tmp_path / "kl-decoder.safetensors")
    model = load_kl(tmp_path)  # the folder's one file
    latents = torch.randn(1, 2, 2, 16)
    assert torch.equal(model.decode(latents), whole.decode(latents))
    with pytest.raises(ModelError, match="no encoder"):
        model.encode(torch.zeros(1, 3, 8, 8))
    save_kl(model, tmp_path / "again.pt")
    assert not load_kl(tmp_path / "again.pt").shape.encoder


def test_wrong_pixels_and_latents_are_refused() -> None:
    model = made(SHAPES[0])
    with pytest.raises(ModelError, match=r"6x8 pixels cannot be encoded") as caught:
        model.encode(torch.zeros(1, 3, 6, 8))
    assert "multiples of 4" in str(caught.value.hint)
    with pytest.raises(ModelError, match=r"\[images, 3, height, width\], got \[1, 1, 8, 8\]"):
        model.encode(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ModelError, match=r"\[images, rows, columns, 16\], got \[1, 16, 2, 2\]"):
        model.decode(torch.zeros(1, 16, 2, 2))
    with pytest.raises(ModelError, match="scale of latents must be positive, got 0"):
        KL(SHAPES[0], scale=0.0)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    file, tensors = published_file(tmp_path, SHAPES[0])

    def refused(change: dict[str, Tensor | None], message: str) -> None:
        held = {name: value for name, value in {**tensors, **change}.items() if value is not None}
        torch.save({"model": held}, tmp_path / "wrong.pt")
        with pytest.raises(ModelError, match=message):
            load_kl(tmp_path / "wrong.pt")

    one = torch.zeros(1)
    refused({"quantize.embedding.weight": one}, "weights of a VQ tokenizer")
    refused({"decoder.up_blocks.0.resnets.0.conv1.weight": one}, "under diffusers' names")
    refused({"post_quant_conv.weight": None}, "there is no post_quant_conv.weight")
    refused({"decoder.mid.attn_1.q.weight": None}, "1 of .* tensors are missing: decoder.mid.attn_1.q.weight")
    refused({"encoder.norm_out.bias": one}, r"encoder.norm_out.bias has shape \[1\], expected \[64\]")
    refused({"decoder.extra": one}, "1 tensors belong to no part of the model: decoder.extra")
    refused(
        {"post_quant_conv.weight": torch.zeros(16, 4, 1, 1)},
        "latents of 4 channels with 16 channels before the decoder",
    )
    (tmp_path / "kl.args.json").write_text(json.dumps({"scale": "big"}))
    with pytest.raises(ModelError, match="scale of latents must be a number, got 'big'"):
        load_kl(file)


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="no KL autoencoder 'tiny-lk'"):
        load_kl("tiny-lk")
    with pytest.raises(ModelError, match="holds no KL autoencoder"):
        load_kl(tmp_path)
    for name in ("kl-a.pt", "kl16.ckpt"):
        published_file(tmp_path, SHAPES[2], name)
    with pytest.raises(ModelError, match=r"2 KL autoencoders: kl-a.pt, kl16.ckpt"):
        load_kl(tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"embed_dim": 0}, {"num_res_blocks": 0}, {"ch_mult": (2, 1)}, {"ch": 40}, {"attention": (5,)}]
)
def test_wrong_shapes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        KLShape(**wrong)  # type: ignore[arg-type]
