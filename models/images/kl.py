"""The KL autoencoder of latent diffusion, as MAR uses it: pixels to a grid of vectors, and back.

High-Resolution Image Synthesis with Latent Diffusion Models, https://arxiv.org/abs/2112.10752
Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    vector = scale * (mean + deviation * noise),  mean and deviation from the encoder

The network is diffusers' AutoencoderKL. Letters: B images, H and W pixels, h and w rows and columns of the
grid (H and W over `shape.downsample`), d channels of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from ..errors import ModelError
from .kl_shape import KLShape
from .level_shape import GROUPS

SCALE = 0.2325  # MAR's scale: brings the latents of its KL-16 to unit deviation
_LOG_VARIANCE = -30.0, 20.0  # the range that log variances are clipped to


@dataclass(frozen=True, slots=True)
class Latents:
    """The encoder's output: a normal distribution for each number of each vector, scaled."""

    mean: Tensor  # [B, h, w, d] float32
    deviation: Tensor  # [B, h, w, d] float32

    def sample(self, noise: Tensor) -> Tensor:
        """The vectors [B, h, w, d] for standard normal noise of that shape."""
        return self.mean + self.deviation * noise


class KL(nn.Module):
    """An autoencoder. Pixels are floats in [-1, 1]; vectors have unit deviation, about, where `scale` fits."""

    def __init__(self, shape: KLShape, *, scale: float = SCALE) -> None:
        """Raises ModelError where the scale is not positive."""
        super().__init__()
        from diffusers import AutoencoderKL  # slow to import

        if not scale > 0:
            raise ModelError(f"the scale of latents must be positive, got {scale}")
        self.shape, self.scale = shape, scale
        levels = range(len(shape.widths))
        kinds = {False: "DownEncoderBlock2D", True: "AttnDownEncoderBlock2D"}
        network: Any = AutoencoderKL(
            down_block_types=tuple(kinds[level in shape.attention] for level in levels),
            up_block_types=("UpDecoderBlock2D",) * len(levels),
            block_out_channels=shape.widths,
            layers_per_block=shape.num_res_blocks,
            latent_channels=shape.embed_dim,
            norm_num_groups=GROUPS,
        )
        if not shape.encoder:
            network.encoder = network.quant_conv = None
        self.network = network

    @property
    def downsample(self) -> int:
        """Pixels per vector along one side."""
        return self.shape.downsample

    @property
    def channels(self) -> int:
        """Numbers in a vector."""
        return self.shape.embed_dim

    def encode(self, pixels: Tensor) -> Latents:
        """Pixels [B, 3, H, W] to the distributions of their vectors.

        Raises ModelError without an encoder, or for what `shape.check_pixels` refuses.
        """
        if self.network.encoder is None:
            raise ModelError(
                "this KL autoencoder has no encoder", "to encode images, use a file with encoder and decoder"
            )
        self.shape.check_pixels(pixels)
        weight = self.network.quant_conv.weight
        moments = self.network.quant_conv(self.network.encoder(pixels.to(weight.dtype))).float()
        mean, log_variance = rearrange(moments, "b (two d) h w -> two b h w d", two=2)
        return Latents(mean * self.scale, log_variance.clamp(*_LOG_VARIANCE).div(2).exp() * self.scale)

    def decode(self, latents: Tensor) -> Tensor:
        """Vectors [B, h, w, d] to float32 pixels [B, 3, H, W]; they may reach a little past [-1, 1].
        Raises ModelError for vectors of another shape.
        """
        if latents.ndim != 4 or latents.shape[-1] != self.channels or not latents.numel():
            raise ModelError(f"latents must be [images, rows, columns, {self.channels}], got {list(latents.shape)}")
        weight = self.network.post_quant_conv.weight
        inner = rearrange(latents.float() / self.scale, "b h w d -> b d h w").to(weight.dtype)
        pixels: Tensor = self.network.decoder(self.network.post_quant_conv(inner))
        return pixels.float()
