"""Uniform quantization of groups of numbers, each with its own scale and minimum.

    scale = (max - min) / (2^b - 1),  code = round((x - min) / scale),  x ~ code scale + min

Scale and minimum are stored in float16, and codes are of the stored ones: the minimum is rounded down and the scale up,
so that the error of no number exceeds half of the stored scale. A group of equal numbers has scale 0 and codes 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import CacheError
from .contracts import Layout, Parts

KIND = torch.float16  # dtype of scales and minima
_INFO = torch.finfo(KIND)


def group_layout(count: int, groups: int, bits: int) -> Layout:
    """The parts of `count` numbers in `groups` groups."""
    return {"codes": ((packed_size(count, bits),), torch.uint8), "scale": ((groups,), KIND), "low": ((groups,), KIND)}


def quantize(x: Tensor, bits: int, clip: float = 1.0) -> Parts:
    """The parts of x [N, groups, size]. With `clip`, a group's range is cut to that share of it, about its middle.

    Raises CacheError for numbers that are not finite, or that float16 cannot hold.
    """
    low, high = x.aminmax(dim=-1, keepdim=True)
    if clip != 1:
        middle, half = (low + high) / 2, (high - low) / 2 * clip
        low, high = middle - half, middle + half
    top = (1 << bits) - 1
    low = finite(_rounded(low, -1))
    scale = checked_scale((high - low.to(x.dtype)) / top)
    step = scale.to(x.dtype)
    codes = ((x - low.to(x.dtype)) / step.masked_fill(step == 0, 1)).round_().clamp_(0, top)
    return {"codes": pack(codes.to(torch.uint8).flatten(1), bits), "scale": scale[..., 0], "low": low[..., 0]}


def checked_scale(scale: Tensor) -> Tensor:
    """`scale` rounded up to float16. Raises CacheError where that is not finite."""
    return finite(_rounded(scale, 1))


def dequantize(parts: Parts, bits: int, size: int, dtype: torch.dtype) -> Tensor:
    """[N, groups, size] of the parts of groups of `size`."""
    scale, low = parts["scale"].to(dtype)[..., None], parts["low"].to(dtype)[..., None]
    codes = unpack(parts["codes"], bits, scale.shape[1] * size)
    return codes.view(*scale.shape[:2], size) * scale + low


def group_size(count: int, most: int) -> int:
    """The largest divisor of `count` that is at most `most`.

    >>> group_size(64, 32), group_size(20, 32), group_size(96, 64)
    (32, 20, 48)
    """
    return next(size for size in range(min(count, most), 0, -1) if count % size == 0)


def finite(stored: Tensor) -> Tensor:
    """Values after conversion to float16. Raises CacheError where they are not finite."""
    if not bool(stored.isfinite().all()):
        raise CacheError(
            f"keys or values are not finite, or above {_INFO.max:.0f}, and cannot be quantized",
            "decode without this cache",
        )
    return stored


def _rounded(x: Tensor, direction: int) -> Tensor:
    """x rounded to float16, down (-1) or up (1)."""
    near = x.to(KIND)
    wide = near.to(x.dtype)
    step = 0.6 * _INFO.eps * wide.abs().clamp(min=_INFO.tiny)  # 0.6 to 1.2 of the distance to the next number
    return torch.where(direction * (x - wide) > 0, (wide + direction * step).to(KIND), near)


_WORDS = {2: (4, 1), 3: (8, 3), 4: (2, 1), 8: (1, 1)}  # bits -> codes per word, bytes per word
BITS = tuple(_WORDS)


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes take."""
    codes, size = _WORDS[bits]
    return -(-count // codes) * size


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes [N, count] uint8, below 2 ** bits -> [N, packed_size(count, bits)] uint8."""
    per, size = _WORDS[bits]
    if per == 1:
        return codes
    words = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per)).view(len(codes), -1, per).int()
    words = (words << (bits * torch.arange(per, device=codes.device, dtype=torch.int32))).sum(-1, dtype=torch.int32)
    if size == 1:
        return words.to(torch.uint8)
    shifts = 8 * torch.arange(size, device=codes.device, dtype=torch.int32)
    return ((words[..., None] >> shifts) & 255).to(torch.uint8).flatten(1)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes [N, count] uint8 of packed [N, bytes]."""
    per, size = _WORDS[bits]
    if per == 1:
        return packed[:, :count]
    if size == 1:
        words, mask = packed, (1 << bits) - 1
        parts = [(words >> (bits * at)) & mask for at in range(per)]
        return torch.stack(parts, -1).flatten(1)[:, :count]
    split = packed.view(len(packed), -1, size).int()
    shifts = 8 * torch.arange(size, device=packed.device, dtype=torch.int32)
    words = (split << shifts).sum(-1, dtype=torch.int32)
    parts = [((words >> (bits * at)) & ((1 << bits) - 1)).to(torch.uint8) for at in range(per)]
    return torch.stack(parts, -1).flatten(1)[:, :count]
