"""LlamaGen's image tokenizer: pixels to codes of a learned codebook, and back.

Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation, https://arxiv.org/abs/2406.06525

    code = the row of the codebook nearest to the encoder's feature, both on the unit sphere

Encoder and decoder are diffusers' blocks. Letters: B images, H and W pixels, h and w rows and columns of codes (H and W
over `shape.downsample`), C the codebook's dimensions.

The published file states no sizes: they are read off its tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ModelError
from ..files.sources import read_json
from ..files.weights import count_parts
from . import autoencoders as names
from .autoencoders import GROUPS, LevelShape, check_arguments, described, multiples
from .weight_files import arguments_file, check_codes, find_file, read_tensors, write_tensors

PATTERNS = ("vq*.safetensors", "vq*.pt")
_IGNORED = ("quantize.codebook_used",)  # a statistic of training
_TRAINING = ("codebook_show_usage", "commit_loss_beta", "entropy_loss_ratio", "dropout_p")  # arguments of training
_WHAT = "VQ tokenizer"


@dataclass(frozen=True)
class VQShape(LevelShape):
    """Sizes of a tokenizer, named after LlamaGen's arguments; the defaults are its published VQ-16."""

    codebook_size: int = 16384
    codebook_embed_dim: int = 8
    z_channels: int = 256
    ch: int = 128  # channels at the first level
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # times ch, one per level; each level but the last halves the image
    num_res_blocks: int = 2  # per level of the encoder; the decoder has one more
    codebook_l2_norm: bool = True  # codes and features are compared and looked up on the unit sphere

    def __post_init__(self) -> None:
        object.__setattr__(self, "ch_mult", tuple(self.ch_mult))
        self.check(_WHAT, "codebook_size", "codebook_embed_dim", "z_channels", "num_res_blocks")

    @staticmethod
    def of(tensors: Mapping[str, Tensor], arguments: Mapping[str, Any] | None = None) -> VQShape:
        """Read the shape off the published tensors; `arguments` are those in a file next to them.

        Raises ModelError for the tensors of another model, or for arguments that contradict them.
        """
        if "tok_embeddings.weight" in tensors:
            raise ModelError(
                "these are the weights of LlamaGen's transformer, not of its tokenizer",
                "use the tokenizer's file, vq_*.pt",
            )
        needed = ("encoder.conv_in.weight", "quantize.embedding.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim < 2]
        if absent:
            raise ModelError(f"not the weights of a VQ tokenizer: there is no {absent[0]}")
        ch = tensors[needed[0]].shape[0]
        shape: dict[str, Any] = {
            "codebook_size": tensors[needed[1]].shape[0],
            "codebook_embed_dim": tensors[needed[1]].shape[1],
            "z_channels": tensors[needed[2]].shape[0],
            "ch": ch,
            "ch_mult": multiples(tensors, "encoder.conv_blocks", "res.0.conv1.weight", ch, _WHAT),
            "num_res_blocks": count_parts(tensors, "encoder.conv_blocks.0.res"),
        }
        known = dict(arguments or {})
        levels = dict.fromkeys(("encoder_ch_mult", "decoder_ch_mult"), shape["ch_mult"])  # the authors' names
        check_arguments(shape | levels, known, "codebook_l2_norm", *_TRAINING)
        unit = known.get("codebook_l2_norm", True)
        if not isinstance(unit, bool):
            raise ModelError(f"codebook_l2_norm must be true or false, got {unit!r}")
        return VQShape(**shape, codebook_l2_norm=unit)


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


def load_vq(source: str | os.PathLike[str], *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> VQ:
    """Load an image tokenizer: an embedded name, a folder that holds one `vq*` file, or the file.

    Shape arguments are read off the tensors; a `<file>.args.json` beside the file is compared with them. The tokenizer
    is ready for inference: parameters need no gradient.

    Raises:
        ModelError: the file is damaged or holds something else, in one line.

    >>> load_vq("tiny-vq").shape.codebook_embed_dim
    8
    """
    file = find_vq(os.fspath(source))
    tensors = {name: value for name, value in read_tensors(file).items() if name not in _IGNORED}
    with described(file):
        model = VQ(VQShape.of(tensors, read_json(arguments_file(file))))
    names.fill(model, file, tensors, names.llamagen, device, dtype)
    return model


def save_vq(model: VQ, file: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
    """Write the tokenizer under LlamaGen's names, `.pt` or `.safetensors`, and a file with its arguments.
    Raises ModelError for another suffix.
    """
    path = Path(file)
    write_tensors(path, {name: value.to(dtype or value.dtype) for name, value in published_tensors(model).items()})
    arguments_file(path).write_text(json.dumps(asdict(model.shape), indent=1) + "\n", encoding="utf-8")


def published_tensors(model: VQ) -> dict[str, Tensor]:
    """The tensors under their published names and in their published forms."""
    return names.published_tensors(model, names.llamagen)


def find_vq(source: str) -> Path:
    """The file of an embedded tokenizer, of a folder that holds one, or the file itself. Raises ModelError."""
    return find_file(source, "vq", "image tokenizer", PATTERNS)
