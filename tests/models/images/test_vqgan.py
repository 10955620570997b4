"""Chameleon's image decoder compared with a plain version on the published tensors; accepted and refused files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.images.autoencoders import latent_diffusion, published_tensors
from pardec.models.images.vqgan import VQGAN, VQGANShape, load_vqgan
from tests.reference import naive_kl

SHAPES = [
    VQGANShape(codes=7, size=4, z_channels=6, ch=32, ch_mult=(1, 2), num_res_blocks=2),  # a level that widens
    VQGANShape(codes=5, size=3, z_channels=3, ch=32, ch_mult=(1, 1, 2), num_res_blocks=1),
]


def published(shape: VQGANShape) -> dict[str, Tensor]:
    """Random tensors under the authors' names; attention layers are convolutions of size 1."""
    torch.manual_seed(0)
    tensors = published_tensors(VQGAN(shape), latent_diffusion(len(shape.widths)))
    return {name: value + 0.05 * torch.randn_like(value) for name, value in tensors.items()}  # norms and biases too


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.ch_mult))
def test_it_computes_what_its_published_tensors_say(shape: VQGANShape, tmp_path: Path) -> None:
    tensors = published(shape)
    torch.save({"state_dict": {**tensors, "encoder.conv_in.weight": torch.zeros(3)}}, tmp_path / "vqgan.ckpt")
    model = load_vqgan(tmp_path / "vqgan.ckpt")
    assert model.shape == shape
    codes = torch.randint(0, shape.codes, (2, 3, 4))
    vectors = tensors["quantize.embedding.weight"][codes].movedim(-1, 1)
    wanted = naive_kl.pixels(tensors, vectors, len(shape.widths)).clamp(-1, 1)
    pixels = model.decode(codes)
    assert pixels.shape == (2, 3, 3 * shape.downsample, 4 * shape.downsample)
    torch.testing.assert_close(pixels, wanted, atol=1e-5, rtol=1e-5)


def test_every_form_of_a_file_says_the_same(tmp_path: Path) -> None:
    tensors, codes = published(SHAPES[0]), torch.arange(6).view(1, 2, 3)
    (tmp_path / "folder").mkdir()
    files = [tmp_path / "vqgan.ckpt", tmp_path / "folder" / "vqgan.safetensors", tmp_path / "within.safetensors"]
    torch.save({"state_dict": tensors}, files[0])
    save_file(tensors, files[1])
    save_file({f"model.vqmodel.{name}": value for name, value in tensors.items()}, files[2])
    first, *others = (load_vqgan(file).decode(codes) for file in (files[0], files[1].parent, files[2]))
    assert all(torch.equal(first, other) for other in others)


def test_files_of_another_decoder_are_refused(tmp_path: Path) -> None:
    tensors, file = published(SHAPES[0]), tmp_path / "vqgan.safetensors"
    name = "decoder.up.0.block.1.conv2.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, file)
    with pytest.raises(ModelError, match="1 of .* tensors are missing: " + name):
        load_vqgan(file)
    save_file({**tensors, "decoder.up.1.attn.0.q.weight": torch.zeros(1)}, file)
    with pytest.raises(ModelError, match=r"belong to no part of the model: decoder\.up\.1\.attn"):
        load_vqgan(file)
    save_file({**tensors, "post_quant_conv.bias": torch.zeros(9)}, file)
    with pytest.raises(ModelError, match=r"post_quant_conv.bias has shape \[9\]"):
        load_vqgan(file)
    save_file(tensors, file)
    with pytest.raises(ModelError, match="code 7 lies outside the codebook of 7"):
        load_vqgan(file).decode(torch.full((1, 2, 2), 7))
