"""Codes of 2, 3, 4 or 8 bits, packed into bytes: the first code in the lowest bits."""

from __future__ import annotations

import torch
from torch import Tensor

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
