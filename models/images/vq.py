"""LlamaGen's image tokenizer: pixels to codes of a learned codebook, and back.

Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation, https://arxiv.org/abs/2406.06525

    code = the row of the codebook nearest to the encoder's feature, both on the unit sphere

Encoder and decoder are diffusers' blocks. Letters: B images, H and W pixels, h and w rows and columns of codes (H and W
over `shape.downsample`), C the codebook's dimensions.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ModelError
from .level_shape import GROUPS
from .vq_shape import VQShape
from .weight_files import check_codes


class VQ(nn.Module):
    """An image tokenizer. Pixels are floats in [-1, 1], codes int64 in [0, codebook_size)."""

    def __init__(self, shape: VQShape) -> None:
        super().__init__()
        from diffusers.models.autoencoders.vae import Decoder, Encoder  # slow to import

        self.shape = shape
        plain = len(shape.widths) - 1  # only the last level has attention
        common = {"layers_per_block": shape.num_res_blocks, "norm_num_groups": GROUPS}
        self.encoder = Encoder(
            out_channels=shape.z_channels,
            down_block_types=("DownEncoderBlock2D",) * plain + ("AttnDownEncoderBlock2D",),
            block_out_channels=shape.widths,
            double_z=False,
            **common,
        )
        self.decoder = Decoder(
            in_channels=shape.z_channels,
            up_block_types=("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * plain,
            block_out_channels=shape.widths,
            **common,
        )
        self.quant_conv = nn.Conv2d(shape.z_channels, shape.codebook_embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(shape.codebook_embed_dim, shape.z_channels, 1)
        self.codebook = nn.Embedding(shape.codebook_size, shape.codebook_embed_dim)
        bound = 1 / shape.codebook_size
        nn.init.uniform_(self.codebook.weight, -bound, bound)

    def rows(self) -> Tensor:
        """The codebook for comparisons and look-ups, float32 [codebook_size, C]; unit vectors with L2 norm."""
        weight = self.codebook.weight.float()
        return F.normalize(weight, dim=1) if self.shape.codebook_l2_norm else weight

    def features(self, pixels: Tensor) -> Tensor:
        """The encoder's features, pixels [B, 3, H, W] to float32 [B, C, h, w].

        Raises ModelError for what `shape.check_pixels` refuses.
        """
        self.shape.check_pixels(pixels)
        features: Tensor = self.quant_conv(self.encoder(pixels.to(self.quant_conv.weight.dtype))).float()
        return F.normalize(features, dim=1) if self.shape.codebook_l2_norm else features

    def nearest(self, features: Tensor) -> Tensor:
        """The code of each feature: [B, C, h, w] to [B, h, w]; ties go to the lowest code."""
        rows = self.rows()
        flat = rearrange(features, "b c h w -> b h w c")
        return (rows.square().sum(1) - 2 * flat @ rows.T).argmin(-1)

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] to codes [B, h, w]; raises as `features` does."""
        return self.nearest(self.features(pixels))

    def vectors(self, codes: Tensor) -> Tensor:
        """Rows of the codebook for codes [B, h, w], float32 [B, C, h, w].
        Raises ModelError for codes of another shape, or outside the codebook.
        """
        if codes.ndim != 3 or not codes.numel():
            raise ModelError(f"codes must be [images, rows, columns], got {list(codes.shape)}")
        check_codes(codes, self.shape.codebook_size)
        return rearrange(F.embedding(codes, self.rows()), "b h w c -> b c h w")

    def pixels(self, vectors: Tensor) -> Tensor:
        """Rows of the codebook [B, C, h, w] to float32 pixels [B, 3, H, W]; they may exceed [-1, 1] a little."""
        pixels: Tensor = self.decoder(self.post_quant_conv(vectors.to(self.post_quant_conv.weight.dtype)))
        return pixels.float()

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, h, w] to pixels [B, 3, H, W]; raises as `vectors` does."""
        return self.pixels(self.vectors(codes))

    def check_vocabulary(self, size: int, whose: str) -> None:
        """Raise ModelError unless a model of `size` image tokens fits this codebook."""
        if size != self.shape.codebook_size:
            raise ModelError(
                f"{whose} has {size} image tokens, and its decoder has a codebook of {self.shape.codebook_size}",
                "use the decoder that the model was trained with",
            )


def to_pixels(images: NDArray[np.uint8]) -> Tensor:
    """Images [B, H, W, 3] of 0..255 as float32 pixels [B, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 127.5 - 1


def to_images(pixels: Tensor) -> NDArray[np.uint8]:
    """Pixels [B, 3, H, W] as images [B, H, W, 3] of 0..255; values outside [-1, 1] are clipped."""
    bytes_ = ((pixels.detach().float().cpu().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return np.ascontiguousarray(bytes_.permute(0, 2, 3, 1).numpy())
