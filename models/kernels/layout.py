"""How a matrix of weights lies in memory, which only time and rounding depend on.

A checkpoint holds W [N, K] row by row, as products of many rows like it. A CPU's products of few rows, which decoding
is made of, read a small float32 matrix up to twice as fast where its columns lie together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LARGEST = 2**22  # entries; larger ones are read from memory, at its own pace


def empty(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for weights; that of a matrix [N, K] lies as few rows are multiplied with it fastest."""
    if device.type == "cpu" and dtype == torch.float32 and len(shape) == 2 and shape[0] * shape[1] <= _LARGEST:
        return torch.empty(shape[::-1], dtype=dtype, device=device).t()
    return torch.empty(shape, dtype=dtype, device=device)
