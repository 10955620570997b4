"""A tokenizer of several scales as it is trained: convolutions, and a codebook that codes a residual scale by scale.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905

    codes_s = nearest(area(f - total, side_s)),  total += phi_s(bicubic(codebook[codes_s]))

Letters: B images, C numbers of a code's vector, S scales, n the last scale's side, V codes, L codes of an image.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from safetensors.torch import load_file
from torch import Tensor, nn

from pardec.models.images import kl_names
from pardec.models.images.kl import KL
from pardec.models.images.level_shape import GROUPS

RATIO = 0.5  # share of a convolved map in phi
_UP_ATTENTION = re.compile(r"\bup_blocks\.(\d+)\.attentions\.")
_THIRD = re.compile(r"\.([qkv])\.")
_ENCODING = ("encoder.", "quant_conv.")


@dataclass(frozen=True)
class Sizes:
    """What published files do not say, under the names of the authors' constructors."""

    vocab_size: int = 512
    z_channels: int = 16
    ch: int = 32
    ch_mult: tuple[int, ...] = (1, 1, 2, 2)
    num_res_blocks: int = 1
    share_quant_resi: int = 4
    patch_nums: tuple[int, ...] = (1, 2, 3, 4, 5, 6)

    def args(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


class Quantizer(nn.Module):
    """The codebook, and the convolutions phi that scales share."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sides, count = sizes.patch_nums, sizes.share_quant_resi
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.z_channels)
        self.phis = nn.ModuleList(nn.Conv2d(sizes.z_channels, sizes.z_channels, 3, padding=1) for _ in range(count))
        edge = 1 / 3 / count if count == 4 else 1 / 2 / count
        ticks = torch.linspace(edge, 1 - edge, count)
        last = max(1, len(self.sides) - 1)
        self.phi_of = [int((ticks - scale / last).abs().argmin()) for scale in range(len(self.sides))]

    def layer(self, codes: Tensor, scale: int) -> Tensor:
        """What the codes [B, side^2] of a scale add to the sum, [B, C, n, n]."""
        side, last = self.sides[scale], self.sides[-1]
        vectors = rearrange(self.embedding(codes), "b (h w) c -> b c h w", h=side)
        if side != last:
            vectors = F.interpolate(vectors, size=(last, last), mode="bicubic")
        return vectors * (1 - RATIO) + self.phis[self.phi_of[scale]](vectors) * RATIO

    def nearest(self, vectors: Tensor) -> Tensor:
        """Codes [B, side^2] of pooled residuals [B, C, side, side]."""
        rows = self.embedding.weight
        flat = rearrange(vectors, "b c h w -> b (h w) c")
        return (rows.square().sum(1) - 2 * flat @ rows.T).argmin(-1)

    def pooled(self, residual: Tensor, scale: int) -> Tensor:
        side = self.sides[scale]
        return residual if side == self.sides[-1] else F.interpolate(residual, size=(side, side), mode="area")

    def forward(self, features: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Codes, sums so far and pooled residuals of features [B, C, n, n], scale by scale."""
        codes, sums, pools = [], [], []
        goal, total = features.detach(), torch.zeros_like(features)
        for scale in range(len(self.sides)):
            with torch.no_grad():
                pools.append(self.pooled(goal - total, scale))
                codes.append(self.nearest(pools[-1]))
            total = total + self.layer(codes[-1], scale)
            sums.append(total)
        return codes, sums, pools


class MultiScaleVQ(nn.Module):
    """Encoder, quantizer and decoder. Pixels are floats in [-1, 1]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        from diffusers.models.autoencoders.vae import Decoder, Encoder  # slow to import

        self.sizes = sizes
        widths = tuple(sizes.ch * times for times in sizes.ch_mult)
        plain = len(widths) - 1  # the last level alone has attention
        common = {"layers_per_block": sizes.num_res_blocks, "norm_num_groups": GROUPS, "block_out_channels": widths}
        down, up = ("DownEncoderBlock2D",) * plain, ("UpDecoderBlock2D",) * plain
        size = sizes.z_channels
        self.encoder = Encoder(
            out_channels=size, down_block_types=(*down, "AttnDownEncoderBlock2D"), double_z=False, **common
        )
        self.decoder = Decoder(in_channels=size, up_block_types=("AttnUpDecoderBlock2D", *up), **common)
        self.quant_conv = nn.Conv2d(size, size, 3, padding=1)
        self.post_quant_conv = nn.Conv2d(size, size, 3, padding=1)
        self.quantize = Quantizer(sizes)

    def features(self, pixels: Tensor) -> Tensor:
        """[B, 3, H, W] to float32 [B, C, n, n]."""
        features: Tensor = self.quant_conv(self.encoder(pixels)).float()
        return features

    def pixels(self, total: Tensor) -> Tensor:
        """The sum of all scales [B, C, n, n] to float32 pixels; they may reach a little past [-1, 1]."""
        pixels: Tensor = self.decoder(self.post_quant_conv(total)).float()
        return pixels

    def encode(self, pixels: Tensor) -> Tensor:
        """Codes of all scales, [B, L] int64."""
        return torch.cat(self.quantize(self.features(pixels))[0], 1)

    def total(self, codes: Tensor) -> Tensor:
        """The sum that codes [B, L] add up to."""
        parts = codes.split([side * side for side in self.sizes.patch_nums], 1)
        layers = [self.quantize.layer(part, scale) for scale, part in enumerate(parts)]
        return torch.stack(layers).sum(0)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, L] to pixels [B, 3, H, W]."""
        return self.pixels(self.total(codes))

    @torch.no_grad()
    def start_from(self, kl: KL) -> None:
        """Take over the network of an autoencoder of the same levels; its scaled means are the features then."""
        state = {key: value.float() for key, value in kl.network.state_dict().items()}
        size = self.sizes.z_channels
        mix, shift = state.pop("quant_conv.weight")[:size, :, 0, 0], state.pop("quant_conv.bias")[:size]
        weight, bias = state["encoder.conv_out.weight"], state["encoder.conv_out.bias"]
        state["encoder.conv_out.weight"] = kl.scale * torch.einsum("om,mihw->oihw", mix, weight)
        state["encoder.conv_out.bias"] = kl.scale * (mix @ bias + shift)
        centre = torch.zeros(size, size, 3, 3)
        centre[:, :, 1, 1] = state.pop("post_quant_conv.weight")[:, :, 0, 0] / kl.scale
        state["post_quant_conv.weight"] = centre
        same = torch.zeros(size, size, 3, 3)
        same[:, :, 1, 1] = torch.eye(size)
        state |= {"quant_conv.weight": same, "quant_conv.bias": torch.zeros(size)}
        for name, value in self.state_dict().items():  # attention that the autoencoder lacks begins by adding nothing
            if "up_blocks" in name and ".to_out." in name:
                state[name] = torch.zeros_like(value)
        missing, unexpected = self.load_state_dict(state, strict=False)
        other = [name for name in missing if not name.startswith("quantize.") and ".attentions." not in name]
        if other or unexpected:
            raise ValueError(f"not an autoencoder of these levels: {[*other, *unexpected][:3]}")


def published(state: dict[str, Tensor], sizes: Sizes, *, encoder: bool = True) -> dict[str, Tensor]:
    """A trained network's tensors under the authors' names; without what encodes images, if not `encoder`."""
    out: dict[str, Tensor] = {}
    threes: dict[str, list[Tensor]] = {}
    for name, value in state.items():
        if not encoder and name.startswith(_ENCODING):
            continue
        own, part = published_name(name, len(sizes.ch_mult))
        if part is None:
            out[own] = value[..., None, None] if own.endswith("proj_out.weight") else value
        else:
            threes.setdefault(own, []).append(value)  # queries, keys and values follow each other
    for own, parts in threes.items():
        whole = torch.cat(parts)
        out[own] = whole[..., None, None] if own.endswith("weight") else whole
    return out


def published_name(name: str, levels: int) -> tuple[str, int | None]:
    """The authors' name of a tensor, and which third of theirs it is, if not all of it.

    >>> published_name("encoder.mid_block.attentions.0.to_k.bias", 4)
    ('encoder.mid.attn_1.qkv.bias', 1)
    >>> published_name("quantize.phis.2.weight", 4)
    ('quantize.quant_resi.qresi_ls.2.weight', None)
    """
    if name.startswith("quantize."):
        return name.replace("phis.", "quant_resi.qresi_ls."), None
    own = _UP_ATTENTION.sub(lambda hit: f"up.{levels - 1 - int(hit[1])}.attn.", name)
    own = kl_names.published(own, levels)
    third = _THIRD.search(own)
    return (own, None) if third is None else (_THIRD.sub(".qkv.", own), "qkv".index(third[1]))


def loaded(folder: Path) -> MultiScaleVQ:
    """An exported tokenizer, without gradients; one whose file lacks the encoder cannot encode."""
    sizes = json.loads((folder / "vae.args.json").read_text(encoding="utf-8"))
    model = MultiScaleVQ(
        Sizes(**{key: tuple(value) if isinstance(value, list) else value for key, value in sizes.items()})
    )
    tensors, state = load_file(folder / "vae.safetensors"), model.state_dict()
    for name, value in state.items():
        own, part = published_name(name, len(model.sizes.ch_mult))
        if own not in tensors and name.startswith(_ENCODING):
            continue
        whole = tensors[own].float()
        state[name] = (whole if part is None else whole.chunk(3)[part]).reshape(value.shape)
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)
