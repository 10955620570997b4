"""The KL autoencoder of latent diffusion, as MAR uses it: pixels to a grid of vectors, and back.

High-Resolution Image Synthesis with Latent Diffusion Models, https://arxiv.org/abs/2112.10752
Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    vector = scale * (mean + deviation * noise),  mean and deviation from the encoder

The network is diffusers' AutoencoderKL. Letters: B images, H and W pixels, h and w rows and columns of the
grid (H and W over `shape.downsample`), d channels of a vector.

The published file states no sizes: they are read off its tensors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from ..errors import ModelError
from ..files.sources import read_json
from . import autoencoders as names
from .autoencoders import GROUPS, LevelShape, check_arguments, decoder_levels, described
from .weight_files import arguments_file, find_file, read_tensors, write_tensors

PATTERNS = ("kl*.safetensors", "kl*.ckpt", "kl*.pt", "kl*.pth")
SCALE = 0.2325  # MAR's scale: brings the latents of its KL-16 to unit deviation
_LOG_VARIANCE = -30.0, 20.0  # the range that log variances are clipped to
_WHAT = "KL autoencoder"


@dataclass(frozen=True)
class KLShape(LevelShape):
    """Sizes of an autoencoder, named after its authors' arguments; the defaults are MAR's KL-16."""

    embed_dim: int = 16  # channels of the latents
    ch: int = 128  # channels at the first level
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # times ch, one per level; each level but the last halves the image
    num_res_blocks: int = 2  # per level of the encoder; the decoder has one more
    attention: tuple[int, ...] = (4,)  # levels of the encoder with attention; the decoder has it only in the middle
    encoder: bool = True  # False: the file has no encoder, and images cannot be encoded

    def __post_init__(self) -> None:
        for name in ("ch_mult", "attention"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self.check(_WHAT, "embed_dim", "num_res_blocks")
        beyond = [level for level in self.attention if not 0 <= level < len(self.ch_mult)]
        if beyond:
            raise ModelError(f"attention is set for level {beyond[0]}, and the levels are 0 to {len(self.ch_mult) - 1}")

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> KLShape:
        """Derives the sizes from the published tensors; raises ModelError for another model's tensors."""
        if "quantize.embedding.weight" in tensors:
            raise ModelError(
                "these are the weights of a VQ tokenizer, not of a KL autoencoder",
                "use a KL autoencoder's file, which has no codebook; MAR's is kl16.ckpt",
            )
        if any(name.startswith("decoder.up_blocks.") for name in tensors):
            raise ModelError(
                "these are the weights of a KL autoencoder under diffusers' names",
                "use the authors' file, with tensor names such as decoder.up.0.block.0.conv1.weight",
            )
        needed = ("decoder.conv_out.weight", "decoder.conv_in.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim != 4]
        if absent:
            raise ModelError(f"not the weights of a KL autoencoder: there is no {absent[0]}")
        levels = decoder_levels(tensors, _WHAT)
        inner, outer = tensors[needed[2]].shape[:2]
        if inner != outer:
            raise ModelError(f"latents of {outer} channels with {inner} channels before the decoder are not supported")
        attention = {int(hit[1]) for name in tensors if (hit := re.match(r"encoder\.down\.(\d+)\.attn\.", name))}
        return KLShape(
            embed_dim=outer,
            **levels,
            attention=tuple(sorted(attention)),
            encoder=any(name.startswith("encoder.") for name in tensors),
        )


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


def load_kl(
    source: str | os.PathLike[str],
    *,
    scale: float | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> KL:
    """Load a KL autoencoder: an embedded name, a folder that holds one `kl*` file, or the file, also "owner/name/file".

    Shape arguments are read off the tensors, and the encoder may be absent. `scale` is what latents are multiplied by;
    if None it is the one that `<file>.args.json` beside the file states, else MAR's. The autoencoder is ready for
    inference: parameters need no gradient.

    Raises:
        ModelError: the file is damaged or holds something else, in one line.
    """
    file = find_kl(os.fspath(source))
    tensors = {name: value for name, value in read_tensors(file).items() if not names.UNUSED.match(name)}
    with described(file):
        shape = KLShape.of(tensors)
        arguments = read_json(arguments_file(file))
        check_arguments(_stated(shape), arguments, "scale", "encoder", "attention")
        model = KL(shape, scale=_scale(arguments) if scale is None else scale)
    if not shape.encoder:
        tensors = {name: value for name, value in tensors.items() if not name.startswith("quant_conv.")}
    names.fill(model.network, file, tensors, names.latent_diffusion(len(shape.widths)), device, dtype)
    return model.eval()


def save_kl(model: KL, file: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
    """Write the autoencoder under its published names, `.pt` or `.safetensors`, and a file with its shape and scale.
    Raises ModelError for another suffix.
    """
    path = Path(file)
    write_tensors(path, {name: value.to(dtype or value.dtype) for name, value in published_tensors(model).items()})
    arguments = {**asdict(model.shape), "scale": model.scale}
    arguments_file(path).write_text(json.dumps(arguments, indent=1) + "\n", encoding="utf-8")


def published_tensors(model: KL) -> dict[str, Tensor]:
    """The tensors under their published names and in their published forms."""
    return names.published_tensors(model.network, names.latent_diffusion(len(model.shape.widths)))


def find_kl(source: str) -> Path:
    """The file of an embedded autoencoder, of a folder that holds one, or the file itself. Raises ModelError."""
    return find_file(source, "kl", _WHAT, PATTERNS)


def _stated(shape: KLShape) -> dict[str, Any]:
    """The sizes that the tensors show, and the encoder's levels with attention where it is there."""
    left_out = ("encoder",) if shape.encoder else ("encoder", "attention")  # a file may have lost its encoder
    return {name: value for name, value in asdict(shape).items() if name not in left_out}


def _scale(arguments: Mapping[str, Any]) -> float:
    """The scale in the arguments next to the weights, else MAR's."""
    scale = arguments.get("scale", SCALE)
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        raise ModelError(f"the scale of latents must be a number, got {scale!r}")
    return float(scale)
