"""The decoder of MAGVIT-v2's image tokenizer, with the names of its published weights.

Language Model Beats Diffusion: Tokenizer is Key to Visual Generation, https://arxiv.org/abs/2310.05737

    code c of n bits: the vector of its bits as -1 and 1, the highest first;  pixels = decoder(vector)

The decoder is a convolutional one of residual blocks: 16 pixels a code along a side in the published shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from ..errors import ModelError
from ..files.weights import count_parts
from .weight_files import check_names, find_file, read_tensors

PATTERNS = ("magvit*.safetensors", "magvit*.pt", "magvit*.bin", "model.safetensors", "pytorch_model.bin")
_GROUPS, _EPS = 32, 1e-6


@dataclass(frozen=True)
class MAGVITShape:
    """Sizes of a decoder; the defaults are those of the published one."""

    bits: int = 13  # of a code
    widths: tuple[int, ...] = (128, 128, 256, 256, 512)  # channels of each level, the one of the pixels first
    blocks: tuple[int, ...] = (4, 4, 3, 4, 3)  # residual blocks of each

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> MAGVITShape:
        """Read the shape off the published tensors. Raises ModelError for those of another model."""
        if "decoder.conv_in.weight" not in tensors or "decoder.up.0.block.0.conv1.weight" not in tensors:
            raise ModelError("not the weights of a MAGVIT-v2 tokenizer: there is no decoder.conv_in, or no decoder.up")
        levels = range(count_parts(tensors, "decoder.up"))
        first = [tensors.get(f"decoder.up.{level}.block.0.conv1.weight") for level in levels]
        blocks = [count_parts(tensors, f"decoder.up.{level}.block") for level in levels]
        widths = [0 if weight is None else weight.shape[0] for weight in first]
        return MAGVITShape(tensors["decoder.conv_in.weight"].shape[1], tuple(widths), tuple(blocks))


class _Block(nn.Module):
    """norm, swish, convolution, twice, beside what it was given."""

    def __init__(self, width: int, to: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(_GROUPS, width, _EPS), nn.Conv2d(width, to, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(_GROUPS, to, _EPS), nn.Conv2d(to, to, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(width, to, 1) if width != to else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        shortcut: Tensor = self.nin_shortcut(x)
        return shortcut + h


class _Attention(nn.Module):
    """Attention of one head over all positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, width, _EPS)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (rearrange(part(h), "b c h w -> b 1 (h w) c") for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.proj_out(rearrange(mixed, "b 1 (h w) c -> b c h w", h=x.shape[2]))
        return x + out


class _Upsample(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        larger: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return larger


class _Decoder(nn.Module):
    def __init__(self, shape: MAGVITShape) -> None:
        super().__init__()
        width = shape.widths[-1]
        self.post_quant_conv = nn.Conv2d(shape.bits, shape.bits, 1)
        self.conv_in = nn.Conv2d(shape.bits, width, 3, padding=1)
        parts = {"block_1": _Block(width, width), "attn_1": _Attention(width), "block_2": _Block(width, width)}
        self.mid = nn.ModuleDict(parts)
        levels = []
        for level in reversed(range(len(shape.widths))):
            to = shape.widths[level]
            blocks = [_Block(width if index == 0 else to, to) for index in range(shape.blocks[level])]
            width = to
            own: dict[str, nn.Module] = {"block": nn.ModuleList(blocks)}
            levels.append(nn.ModuleDict(own | ({"upsample": _Upsample(to)} if level else {})))
        self.up = nn.ModuleList(reversed(levels))
        self.norm_out, self.conv_out = nn.GroupNorm(_GROUPS, width, _EPS), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, vectors: Tensor) -> Tensor:
        h: Tensor = self.conv_in(self.post_quant_conv(vectors))
        for part in self.mid.values():
            h = part(h)
        for level in reversed(self.up):
            assert isinstance(level, nn.ModuleDict)
            for part in (*level["block"], *([level["upsample"]] if "upsample" in level else [])):  # type: ignore[misc]
                h = part(h)
        pixels: Tensor = self.conv_out(F.silu(self.norm_out(h)))
        return pixels


class MAGVIT(nn.Module):
    """The decoder half of a tokenizer. Pixels lie around [-1, 1]."""

    def __init__(self, shape: MAGVITShape) -> None:
        """Raises ModelError for widths that the groups of the norms do not divide."""
        super().__init__()
        if not all(width and width % _GROUPS == 0 for width in shape.widths) or not all(shape.blocks):
            raise ModelError(f"a MAGVIT-v2 decoder of widths {list(shape.widths)} and blocks {list(shape.blocks)}")
        self.shape = shape
        self.decoder = _Decoder(shape)

    @property
    def codebook_size(self) -> int:
        """How many codes there are."""
        return int(2**self.shape.bits)

    @property
    def downsample(self) -> int:
        """Pixels per code along one side."""
        return int(2 ** (len(self.shape.widths) - 1))

    def vectors(self, codes: Tensor) -> Tensor:
        """The bits of codes [B, h, w] as -1 and 1, float32 [B, bits, h, w]. Raises ModelError for other codes."""
        low, high = (int(value) for value in codes.aminmax())
        if low < 0 or high >= self.codebook_size:
            wrong = low if low < 0 else high
            raise ModelError(f"code {wrong} lies outside the codebook of {self.codebook_size}")
        shifts = torch.arange(self.shape.bits - 1, -1, -1, device=codes.device)
        return rearrange((codes[..., None] >> shifts) & 1, "b h w c -> b c h w").float() * 2 - 1

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, h, w] to float32 pixels [B, 3, H, W]; raises as `vectors` does."""
        weight = self.decoder.conv_in.weight
        pixels: Tensor = self.decoder(self.vectors(codes.to(weight.device)).to(weight.dtype))
        return pixels.float()


def find_magvit(source: str) -> Path:
    """The weights: a folder that holds one file of them, the file itself, or "owner/name/file" on the hub."""
    return find_file(source, "magvit", "MAGVIT-v2 tokenizer", PATTERNS)


def load_magvit(file: Path, *, device: torch.device | str = "cpu") -> MAGVIT:
    """The decoder in a file of the whole tokenizer, in float32, ready for inference; the encoder is left out.

    Raises ModelError: the file is damaged or holds something else.
    """
    tensors = {name: value for name, value in read_tensors(file).items() if not re.match(r"(encoder|quantize)\.", name)}
    try:
        shape = MAGVITShape.of(tensors)
        with torch.device("meta"):
            model = MAGVIT(shape)
    except ModelError as error:
        raise ModelError(f"{file}: {error}", error.hint) from error
    check_names(file, tensors, {name: tuple(value.shape) for name, value in model.state_dict().items()})
    model.load_state_dict({name: value.to(device, torch.float32) for name, value in tensors.items()}, assign=True)
    return model.eval().requires_grad_(False)
