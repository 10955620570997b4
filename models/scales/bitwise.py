"""Infinity's image tokenizer: an image is the sum of maps of signs, spread from their side to the last one.

Infinity: Scaling Bitwise AutoRegressive Modeling for High-Resolution Image Synthesis, https://arxiv.org/abs/2412.04431
Image and Video Tokenization with Binary Spherical Quantization, https://arxiv.org/abs/2406.07548

    f += bilinear((2 bits_s - 1) / sqrt(d));  pixels = decoder(f);  the transformer reads area(f) at the next side

A code is the number that its d bits write, the first one the highest. There is no codebook, and f is what the decoder
reads. The decoder is diffusers', without attention; the published file (infinity_vae_d32reg.pth) also has an encoder,
which is left alone: images cannot be encoded. Letters: B images, L codes of an image, d bits of a code.
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
from ..images.autoencoders import (
    LevelShape,
    decoder_levels,
    described,
    fill,
    latent_diffusion,
    plain_decoder,
)
from ..images.weight_files import find_file, read_tensors
from .contracts import Scales
from .tokenizer import total_of

PATTERNS = ("infinity_vae*.safetensors", "infinity_vae*.pt", "infinity_vae*.pth")
_WHAT = "bitwise image tokenizer"
_UNUSED = re.compile(r"encoder\.|quantizer?e?\.lfq\.mask$")  # the mask holds powers of two
# Published modules of convolutions and norms hold torch's as `conv` and `norm`; other files of theirs do not.
_HELD = re.compile(r"\b(conv\d?|conv_in|conv_out|nin_shortcut)\.conv\.(?=weight|bias)|\b(norm\d?|norm_out)\.norm\.")


class BitwiseQuantizer:
    """A `MultiScaleQuantizer` without weights."""

    vocab = 2

    def __init__(self, scales: Scales, bits: int, device: torch.device) -> None:
        self.scales, self.digits, self.channels, self.device = scales, bits, bits, device

    def start(self, rows: int) -> Tensor:
        side = self.scales.sides[-1]
        return torch.zeros(rows, self.channels, side, side, device=self.device)

    def add(self, total: Tensor, codes: Tensor, scale: int) -> Tensor:
        place = torch.arange(self.digits - 1, -1, -1, device=codes.device)
        signs = ((codes[..., None] >> place & 1) * 2 - 1) / self.digits**0.5
        side, last = self.scales.sides[scale], self.scales.sides[-1]
        spread = rearrange(signs, "b (h w) d -> b d h w", h=side)
        return total + (spread if side == last else F.interpolate(spread, size=(last, last), mode="bilinear"))

    def map_of(self, total: Tensor, scale: int) -> Tensor:
        side = self.scales.sides[scale]
        return rearrange(F.interpolate(total, size=(side, side), mode="area"), "b d h w -> b (h w) d")

    def total(self, codes: Tensor) -> Tensor:
        """The running sum of codes [B, L]; scales whose codes are -1 add nothing. Raises ModelError."""
        return total_of(self, codes, 2**self.digits)


@dataclass(frozen=True)
class DecoderShape(LevelShape):
    """Sizes of the decoder, read off its tensors; the defaults are the published ones."""

    z_channels: int = 32  # bits of a code
    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 2, 4, 4, 4)
    num_res_blocks: int = 2  # the decoder has one more per level

    def __post_init__(self) -> None:
        self.check(_WHAT, "z_channels", "num_res_blocks")

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> DecoderShape:
        """The shape of these tensors. Raises ModelError for tensors of another model or of a video tokenizer."""
        for name in ("decoder.conv_in.weight", "decoder.conv_out.weight"):
            if name not in tensors or tensors[name].ndim not in (4, 5):
                hint = "name the authors' infinity_vae_d32reg.pth, or another of their tokenizers of images"
                raise ModelError(f"not the weights of a {_WHAT}: there is no {name}", hint)
            if tensors[name].ndim == 5:
                raise ModelError(f"{name} is that of a tokenizer of video", "pardec draws images: name one of images")
        return DecoderShape(tensors["decoder.conv_in.weight"].shape[1], **decoder_levels(tensors, _WHAT))


class BitwiseDecoder(nn.Module):
    """Running sums to pixels."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.decoder = plain_decoder(shape.z_channels, shape.widths, shape.num_res_blocks, attention=False)

    def forward(self, total: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1], float32, of running sums [B, d, h, w]."""
        pixels: Tensor = self.decoder(total)
        return pixels.clamp(-1, 1).float()


def load_decoder(source: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> BitwiseDecoder:
    """The decoder in a file, or in a folder that holds one `infinity_vae*` file; float32, ready for inference.

    Raises ModelError: the file is damaged or holds something else, in one line.
    """
    file = find_decoder(os.fspath(source))
    tensors = {
        _HELD.sub(lambda hit: f"{hit[1] or hit[2]}.", name): value
        for name, value in read_tensors(file).items()
        if not _UNUSED.match(name)
    }
    with described(file):
        shape = DecoderShape.of(tensors)
        model = BitwiseDecoder(shape)
    fill(model, file, tensors, latent_diffusion(len(shape.widths)), device)
    return model


def find_decoder(source: str) -> Path:
    """The file of a folder that holds one, or the file itself. Raises ModelError."""
    return find_file(source, "infinity_vae", _WHAT, PATTERNS)
