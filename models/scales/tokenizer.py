"""VAR's image tokenizer: an image is the sum of token maps of growing sides, each looked up in one codebook.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905

    h_s = codebook[codes_s], bicubic to the last side;  f += (1 - r) h_s + r conv_k(h_s);  pixels = decoder(conv(f))
    encoding: codes_s = nearest(area(rest)), rest -= what they add to f;  the transformer reads area(f) at the next side

Scale s of S uses that of K convolutions whose tick is nearest to s / (S - 1). Encoder and decoder are diffusers'.
Letters: B images, S scales, L codes of an image, C numbers of a code's vector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from ..errors import ModelError
from ..images.autoencoders import GROUPS, LevelShape, check_arguments, decoder_levels
from ..images.weight_files import check_codes
from .contracts import MultiScaleQuantizer, Scales


def phi_index(count: int, scales: int) -> tuple[int, ...]:
    """For each of `scales` scales, the index of the convolution that it uses, of `count` convolutions.

    >>> phi_index(4, 5)
    (0, 1, 2, 2, 3)
    """
    margin = 1 / (3 if count == 4 else 2) / count
    ticks = np.linspace(margin, 1 - margin, count)
    return tuple(int(np.argmin(np.abs(ticks - (scale / (scales - 1) if scales > 1 else 0)))) for scale in range(scales))


class MultiScaleVQ(nn.Module):
    """An image tokenizer; with `scales` it is a `MultiScaleQuantizer`. Pixels are floats in [-1, 1]."""

    def __init__(self, shape: TokenizerShape, scales: Scales) -> None:
        super().__init__()
        from diffusers.models.autoencoders.vae import Decoder, Encoder  # slow to import

        self.shape, self.scales = shape, scales
        self.phi = phi_index(shape.share_quant_resi, len(scales))
        plain = len(shape.widths) - 1  # only the last level has attention
        common = {"layers_per_block": shape.num_res_blocks, "norm_num_groups": GROUPS}
        self.encoder = self.quant_conv = None
        if shape.encoder:
            self.encoder = Encoder(
                out_channels=shape.z_channels,
                down_block_types=("DownEncoderBlock2D",) * plain + ("AttnDownEncoderBlock2D",),
                block_out_channels=shape.widths,
                double_z=False,
                **common,
            )
            self.quant_conv = nn.Conv2d(shape.z_channels, shape.z_channels, 3, padding=1)
        self.decoder = Decoder(
            in_channels=shape.z_channels,
            up_block_types=("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * plain,
            block_out_channels=shape.widths,
            **common,
        )
        self.post_quant_conv = nn.Conv2d(shape.z_channels, shape.z_channels, 3, padding=1)
        self.codebook = nn.Embedding(shape.vocab_size, shape.z_channels)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(shape.z_channels, shape.z_channels, 3, padding=1) for _ in range(shape.share_quant_resi)
        )

    # --- a quantizer ---

    @property
    def channels(self) -> int:
        return self.shape.z_channels

    @property
    def vocab(self) -> int:
        return self.shape.vocab_size

    @property
    def digits(self) -> int:
        return 1

    def start(self, rows: int) -> Tensor:
        side = self.scales.sides[-1]
        return self.codebook.weight.new_zeros(rows, self.channels, side, side)

    def add(self, total: Tensor, codes: Tensor, scale: int) -> Tensor:
        return total + self._added(F.embedding(codes, self.codebook.weight), scale)

    def map_of(self, total: Tensor, scale: int) -> Tensor:
        return rearrange(self._pooled(total, scale), "r c h w -> r (h w) c")

    def _added(self, vectors: Tensor, scale: int) -> Tensor:
        """The contribution of vectors [B, n_s, C] to the running sum."""
        side, last = self.scales.sides[scale], self.scales.sides[-1]
        spread = rearrange(vectors, "b (h w) c -> b c h w", h=side)
        if side != last:
            spread = F.interpolate(spread, size=(last, last), mode="bicubic")
        weight = self.shape.quant_resi
        added: Tensor = spread * (1 - weight) + self.convolutions[self.phi[scale]](spread) * weight
        return added

    def _pooled(self, total: Tensor, scale: int) -> Tensor:
        side = self.scales.sides[scale]
        return total if side == total.shape[-1] else F.interpolate(total, size=(side, side), mode="area")

    # --- images ---

    def decode(self, codes: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] of codes [B, L]; scales whose codes are -1 add nothing. Raises ModelError."""
        return self.pixels(total_of(self, codes, self.vocab))

    def pixels(self, total: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1], float32, of running sums [B, C, h, w]."""
        pixels: Tensor = self.decoder(self.post_quant_conv(total))
        return pixels.clamp(-1, 1).float()

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] to codes [B, L]; ties go to the lowest code.

        Raises ModelError without an encoder, for pixels of another size, or what `shape.check_pixels` refuses.
        """
        if self.encoder is None or self.quant_conv is None:
            raise ModelError(
                "this image tokenizer has no encoder", "to encode images, use a file with encoder and decoder"
            )
        self.shape.check_pixels(pixels)
        side = self.scales.sides[-1] * self.shape.downsample
        if tuple(pixels.shape[-2:]) != (side, side):
            raise ModelError(f"images have {side} by {side} pixels, got {list(pixels.shape[-2:])}")
        rest = self.quant_conv(self.encoder(pixels.to(self.codebook.weight.dtype)))
        codes = []
        for scale in range(len(self.scales)):
            wanted = rearrange(self._pooled(rest, scale), "b c h w -> b (h w) c")
            table = self.codebook.weight
            nearest = (table.square().sum(1) - 2 * wanted @ table.T).argmin(-1)
            codes.append(nearest)
            rest = rest - self._added(F.embedding(nearest, table), scale)
        return torch.cat(codes, 1)


def total_of(quantizer: MultiScaleQuantizer, codes: Tensor, most: int) -> Tensor:
    """The sum of the maps of codes [B, L] below `most`; a scale whose codes are -1 adds nothing. Raises ModelError."""
    scales = quantizer.scales
    if codes.ndim != 2 or codes.shape[1] != scales.tokens or not codes.numel():
        raise ModelError(f"codes must be [images, {scales.tokens}], got {list(codes.shape)}")
    check_codes(codes, most, least=-1)
    total = quantizer.start(len(codes))
    for scale, (begin, end) in enumerate(zip(scales.starts, scales.starts[1:], strict=False)):
        own = codes[:, begin:end]
        known = (own >= 0).all(1)
        if bool(known.any()):
            total = torch.where(known[:, None, None, None], quantizer.add(total, own.clamp(min=0), scale), total)
    return total


_WHAT = "multi-scale image tokenizer"
_NO_EFFECT = (
    "beta",
    "dropout",
    "default_qresi_counts",
    "test_mode",
    "quant_conv_ks",
)  # arguments of training and of building


@dataclass(frozen=True)
class TokenizerShape(LevelShape):
    """Sizes of a tokenizer, named after VAR's arguments; the defaults are its published ones."""

    vocab_size: int = 4096
    z_channels: int = 32  # size of a code's vector
    ch: int = 160  # channels at the first level
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # times ch, one per level; each level but the last halves the image
    num_res_blocks: int = 2  # per level of the encoder; the decoder has one more
    share_quant_resi: int = 4  # number of convolutions that the scales share
    quant_resi: float = 0.5  # their weight
    encoder: bool = True  # False: the file has no encoder, and images cannot be encoded

    def __post_init__(self) -> None:
        object.__setattr__(self, "ch_mult", tuple(self.ch_mult))
        self.check(_WHAT, "vocab_size", "z_channels", "num_res_blocks", "share_quant_resi")

    @staticmethod
    def of(tensors: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> TokenizerShape:
        """Read the shape off the published tensors; `arguments` are those in a file next to them.

        Raises ModelError for the tensors of another model, or for arguments that contradict them.
        """
        if "pos_1LC" in tensors:
            raise ModelError(
                "these are the weights of VAR's transformer, not of its tokenizer",
                "use the tokenizer's file, vae_*.pth",
            )
        needed = ("quantize.embedding.weight", "decoder.conv_out.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim < 2]
        convolutions = {hit[1] for name in tensors if (hit := re.match(r"quantize\.quant_resi\.(.*)\.weight$", name))}
        if absent or not convolutions:
            raise ModelError(f"not the weights of a {_WHAT}: there is no {(*absent, 'quantize.quant_resi')[0]}")
        shape: dict[str, Any] = {
            "vocab_size": tensors[needed[0]].shape[0],
            "z_channels": tensors[needed[0]].shape[1],
            **decoder_levels(tensors, _WHAT),
            "share_quant_resi": len(convolutions),
        }
        own = ("quant_resi", "patch_nums", "encoder", "using_znorm")
        check_arguments(shape, arguments, *own, *_NO_EFFECT)
        if arguments.get("using_znorm"):
            raise ModelError(
                "using_znorm=true is not supported", "supported: the nearest code without normalizing vectors"
            )
        weight = arguments.get("quant_resi", 0.5)
        return TokenizerShape(
            **shape, quant_resi=abs(float(weight)), encoder=any(name.startswith("encoder.") for name in tensors)
        )
