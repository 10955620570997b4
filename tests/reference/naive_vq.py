"""LlamaGen's tokenizer written from its description, on the published tensors alone: no blocks of another library."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = dict[str, Tensor]


def conv(t: Tensors, name: str, x: Tensor, padding: int = 1, stride: int = 1) -> Tensor:
    return F.conv2d(x, t[f"{name}.weight"], t[f"{name}.bias"], stride=stride, padding=padding)


def norm(t: Tensors, name: str, x: Tensor) -> Tensor:
    return F.group_norm(x, 32, t[f"{name}.weight"], t[f"{name}.bias"], eps=1e-6)


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def res(t: Tensors, name: str, x: Tensor) -> Tensor:
    y = conv(t, f"{name}.conv1", swish(norm(t, f"{name}.norm1", x)))
    y = conv(t, f"{name}.conv2", swish(norm(t, f"{name}.norm2", y)))
    return y + (conv(t, f"{name}.nin_shortcut", x, 0) if f"{name}.nin_shortcut.weight" in t else x)


def attn(t: Tensors, name: str, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    y = norm(t, f"{name}.norm", x)
    q, k, v = (conv(t, f"{name}.{part}", y, 0).reshape(b, c, h * w) for part in "qkv")
    weights = torch.softmax(q.transpose(1, 2) @ k * c**-0.5, -1)  # [b, query, key]
    return x + conv(t, f"{name}.proj_out", (v @ weights.transpose(1, 2)).reshape(b, c, h, w), 0)


def blocks(t: Tensors, name: str, x: Tensor) -> Tensor:
    for j in range(9):
        if f"{name}.res.{j}.conv1.weight" in t:
            x = res(t, f"{name}.res.{j}", x)
        if f"{name}.attn.{j}.q.weight" in t:
            x = attn(t, f"{name}.attn.{j}", x)
    return x


def mid(t: Tensors, name: str, x: Tensor) -> Tensor:
    return res(t, f"{name}.mid.2", attn(t, f"{name}.mid.1", res(t, f"{name}.mid.0", x)))


def out(t: Tensors, name: str, x: Tensor) -> Tensor:
    return conv(t, f"{name}.conv_out", swish(norm(t, f"{name}.norm_out", x)))


def features(t: Tensors, pixels: Tensor, levels: int) -> Tensor:
    x = conv(t, "encoder.conv_in", pixels)
    for i in range(levels):
        x = blocks(t, f"encoder.conv_blocks.{i}", x)
        if i < levels - 1:
            x = conv(t, f"encoder.conv_blocks.{i}.downsample.conv", F.pad(x, (0, 1, 0, 1)), 0, 2)
    return conv(t, "quant_conv", out(t, "encoder", mid(t, "encoder", x)), 0)


def codes(t: Tensors, pixels: Tensor, levels: int) -> Tensor:
    z = F.normalize(features(t, pixels, levels), dim=1)
    rows = F.normalize(t["quantize.embedding.weight"], dim=1)
    return (z.permute(0, 2, 3, 1)[..., None, :] - rows).square().sum(-1).argmin(-1)


def pixels(t: Tensors, found: Tensor, levels: int) -> Tensor:
    rows = F.normalize(t["quantize.embedding.weight"], dim=1)
    x = conv(t, "post_quant_conv", rows[found].permute(0, 3, 1, 2), 0)
    x = mid(t, "decoder", conv(t, "decoder.conv_in", x))
    for i in range(levels):
        x = blocks(t, f"decoder.conv_blocks.{i}", x)
        if i < levels - 1:
            x = conv(t, f"decoder.conv_blocks.{i}.upsample.conv", x.repeat_interleave(2, 2).repeat_interleave(2, 3))
    return out(t, "decoder", x)
