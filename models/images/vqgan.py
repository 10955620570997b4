"""Chameleon's image tokenizer: the decoder of a VQGAN, from the file of its authors.

Taming Transformers for High-Resolution Image Synthesis, https://arxiv.org/abs/2012.09841

Published files are called vqgan.ckpt and hold an encoder and a loss as well, which are left alone. Tensors are named as
those of latent diffusion's autoencoders are; the decoder is diffusers'. Letters: B images, h and w rows and columns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from ..errors import ModelError
from . import autoencoders as names
from .autoencoders import LevelShape, decoder_levels, described, plain_decoder
from .weight_files import check_codes, find_file, read_tensors

PATTERNS = ("vqgan*.ckpt", "vqgan*.safetensors", "vqgan*.pt", "vqgan*.pth")
_WHAT = "VQGAN"
_PREFIX = "model.vqmodel."  # in a checkpoint that also holds the transformer
_USED = re.compile(r"(decoder|post_quant_conv|quantize\.embedding)\.")


@dataclass(frozen=True)
class VQGANShape(LevelShape):
    """Sizes of the decoder, read off its tensors."""

    codes: int = 8192
    size: int = 256  # size of a code's vector
    z_channels: int = 256
    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2

    def __post_init__(self) -> None:
        self.check(_WHAT, "codes", "size", "z_channels", "num_res_blocks")

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> VQGANShape:
        """The shape of these tensors. Raises ModelError for another model's, or an encoder's alone."""
        needed = ("quantize.embedding.weight", "decoder.conv_out.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim < 2]
        if absent:
            hint = "use the authors' file vqgan.ckpt; folders of transformers have only the encoder"
            raise ModelError(f"not the weights of a {_WHAT} with a decoder: there is no {absent[0]}", hint)
        return VQGANShape(
            codes=tensors[needed[0]].shape[0],
            size=tensors[needed[0]].shape[1],
            z_channels=tensors[needed[2]].shape[0],
            **decoder_levels(tensors, _WHAT),
        )


class VQGAN(nn.Module):
    """Codes to pixels."""

    def __init__(self, shape: VQGANShape) -> None:
        super().__init__()
        self.shape = shape
        self.decoder = plain_decoder(shape.z_channels, shape.widths, shape.num_res_blocks)
        self.post_quant_conv = nn.Conv2d(shape.size, shape.z_channels, 1)
        self.codebook = nn.Embedding(shape.codes, shape.size)

    @property
    def downsample(self) -> int:
        """Pixels per code along one side."""
        return self.shape.downsample

    def decode(self, codes: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1], float32, of codes [B, h, w]. Raises ModelError for invalid codes."""
        codes = codes.to(self.codebook.weight.device)
        check_codes(codes, self.shape.codes)
        vectors = rearrange(F.embedding(codes, self.codebook.weight), "b h w c -> b c h w")
        pixels: Tensor = self.decoder(self.post_quant_conv(vectors))
        return pixels.clamp(-1, 1).float()


def load_vqgan(source: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> VQGAN:
    """The decoder in a file, or in a folder that holds one `vqgan*` file; float32, ready for inference.

    Raises ModelError: the file is damaged or holds something else, in one line.
    """
    file = find_vqgan(os.fspath(source))
    tensors = {name.removeprefix(_PREFIX): value for name, value in read_tensors(file).items()}
    with described(file):
        shape = VQGANShape.of(tensors)
        model = VQGAN(shape)
    used = {name: value for name, value in tensors.items() if _USED.match(name)}
    names.fill(model, file, used, names.latent_diffusion(len(shape.widths)), device)
    return model


def find_vqgan(source: str) -> Path:
    """The file of a folder that holds one, or the file itself. Raises ModelError."""
    return find_file(source, "vqgan", _WHAT, PATTERNS)
