"""A KL autoencoder written from its description, on the published tensors alone: no blocks of another library."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .naive_vq import Tensors, attn, conv, out, res


def mid(t: Tensors, name: str, x: Tensor) -> Tensor:
    x = res(t, f"{name}.mid.block_1", x)
    return res(t, f"{name}.mid.block_2", attn(t, f"{name}.mid.attn_1", x))


def moments(t: Tensors, pixels: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the latents, [B, d, h, w] each, not scaled."""
    x = conv(t, "encoder.conv_in", pixels)
    for i in range(levels):
        j = 0
        while f"encoder.down.{i}.block.{j}.conv1.weight" in t:
            x = res(t, f"encoder.down.{i}.block.{j}", x)
            if f"encoder.down.{i}.attn.{j}.q.weight" in t:
                x = attn(t, f"encoder.down.{i}.attn.{j}", x)
            j += 1
        if i < levels - 1:
            x = conv(t, f"encoder.down.{i}.downsample.conv", F.pad(x, (0, 1, 0, 1)), 0, 2)
    mean, log_variance = conv(t, "quant_conv", out(t, "encoder", mid(t, "encoder", x)), 0).chunk(2, 1)
    return mean, torch.exp(0.5 * log_variance)


def pixels(t: Tensors, latents: Tensor, levels: int) -> Tensor:
    """The pixels decoded from latents [B, d, h, w], not scaled."""
    x = mid(t, "decoder", conv(t, "decoder.conv_in", conv(t, "post_quant_conv", latents, 0)))
    for i in reversed(range(levels)):
        j = 0
        while f"decoder.up.{i}.block.{j}.conv1.weight" in t:
            x = res(t, f"decoder.up.{i}.block.{j}", x)
            j += 1
        if i > 0:
            x = conv(t, f"decoder.up.{i}.upsample.conv", F.interpolate(x, scale_factor=2.0, mode="nearest"))
    return out(t, "decoder", x)
