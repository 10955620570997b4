"""The decoder of MAGVIT-v2's image tokenizer, from the file of its authors.

Language Model Beats Diffusion: Tokenizer is Key to Visual Generation, https://arxiv.org/abs/2310.05737

    code c of n bits: the vector of its bits as -1 and 1, the highest first;  pixels = decoder(vector)

The decoder is diffusers', with another number of residual blocks at each level: 16 pixels a code along a side in the
published shape. Its tensors are named as those of latent diffusion's autoencoders are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from einops import rearrange
from torch import Tensor, nn

from ..errors import ModelError
from ..files.weights import count_parts
from .autoencoders import GROUPS, Names, described, fill, latent_diffusion, plain_decoder
from .weight_files import check_codes, find_file, read_tensors

PATTERNS = ("magvit*.safetensors", "magvit*.pt", "magvit*.bin", "model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class MAGVITShape:
    """Sizes of a decoder; the defaults are the published ones."""

    bits: int = 13  # bits per code
    widths: tuple[int, ...] = (128, 128, 256, 256, 512)  # channels per level, from the pixels on
    blocks: tuple[int, ...] = (4, 4, 3, 4, 3)  # residual blocks per level

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> MAGVITShape:
        """Read the shape off the published tensors. Raises ModelError for tensors of another model."""
        if "decoder.conv_in.weight" not in tensors or "decoder.up.0.block.0.conv1.weight" not in tensors:
            raise ModelError("not the weights of a MAGVIT-v2 tokenizer: there is no decoder.conv_in, or no decoder.up")
        levels = range(count_parts(tensors, "decoder.up"))
        first = [tensors.get(f"decoder.up.{level}.block.0.conv1.weight") for level in levels]
        blocks = [count_parts(tensors, f"decoder.up.{level}.block") for level in levels]
        widths = [0 if weight is None else weight.shape[0] for weight in first]
        return MAGVITShape(tensors["decoder.conv_in.weight"].shape[1], tuple(widths), tuple(blocks))


class MAGVIT(nn.Module):
    """The decoder half of a tokenizer. Pixels lie around [-1, 1]."""

    def __init__(self, shape: MAGVITShape) -> None:
        """Raises ModelError for widths that the groups of the norms do not divide."""
        super().__init__()
        if not all(width and width % GROUPS == 0 for width in shape.widths) or not all(shape.blocks):
            raise ModelError(
                f"MAGVIT-v2 widths must be multiples of {GROUPS}, and blocks at least 1; got widths "
                f"{list(shape.widths)} and blocks {list(shape.blocks)}"
            )
        self.shape = shape
        self.post_quant_conv = nn.Conv2d(shape.bits, shape.bits, 1)
        self.decoder = plain_decoder(shape.bits, shape.widths, max(shape.blocks) - 1)  # a decoder has one more
        for level, blocks in zip(self.decoder.up_blocks, reversed(shape.blocks), strict=True):
            level.resnets = level.resnets[:blocks]

    @property
    def codebook_size(self) -> int:
        """The number of codes."""
        return int(2**self.shape.bits)

    @property
    def downsample(self) -> int:
        """Pixels per code along one side."""
        return int(2 ** (len(self.shape.widths) - 1))

    def vectors(self, codes: Tensor) -> Tensor:
        """The bits of codes [B, h, w] as -1 and 1, float32 [B, bits, h, w]. Raises ModelError for other codes."""
        check_codes(codes, self.codebook_size)
        shifts = torch.arange(self.shape.bits - 1, -1, -1, device=codes.device)
        return rearrange((codes[..., None] >> shifts) & 1, "b h w c -> b c h w").float() * 2 - 1

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, h, w] to float32 pixels [B, 3, H, W]; raises as `vectors` does."""
        weight = self.post_quant_conv.weight
        vectors = self.vectors(codes.to(weight.device)).to(weight.dtype)
        pixels: Tensor = self.decoder(self.post_quant_conv(vectors))
        return pixels.float()


def find_magvit(source: str) -> Path:
    """The weights: a folder that holds one file of them, the file itself, or "owner/name/file" on the hub."""
    return find_file(source, "magvit", "MAGVIT-v2 tokenizer", PATTERNS)


def load_magvit(file: Path, *, device: torch.device | str = "cpu") -> MAGVIT:
    """The decoder in a file of the whole tokenizer, in float32, ready for inference; the encoder is left out.

    Raises ModelError: the file is damaged or holds something else.
    """
    tensors = {name: value for name, value in read_tensors(file).items() if not re.match(r"(encoder|quantize)\.", name)}
    with described(file):
        shape = MAGVITShape.of(tensors)
        model = MAGVIT(shape)
    fill(model, file, tensors, published(shape), device)
    return model


def published(shape: MAGVITShape) -> Names:
    """The published names of a decoder's tensors."""
    names = latent_diffusion(len(shape.widths))
    return lambda name: names(f"decoder.{name}" if name.startswith("post_quant_conv.") else name)
