"""Memory layouts of weight matrices; they affect only speed and rounding.

A checkpoint holds W [N, K] row by row, which suits matmuls of many rows. A CPU's matmuls of few rows, which decoding
is made of, read a float32 matrix up to twice as fast where its columns lie together and do not all begin in the same
sets of the cache, and a large one faster still in panels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .cpu import panels
from .cpu.packed import PackedWeight

_SETS = 256  # entries: columns whose distance is a multiple of it compete for the same lines of a cache
_APART = 16  # extra entries, one cache line, that move columns to different lines
_STRIP = 64  # rows transposed at once, so that the output stays in a cache


def empty(
    shape: Sequence[int], *, dtype: torch.dtype, device: torch.device, source: torch.dtype | None = None
) -> Tensor:
    """Memory for weights that multiply states of `dtype`; a matrix [N, K] is laid out for matmuls of few rows.

    Where the numbers come as bfloat16 (`source`), float32 panels keep them so: they lose nothing and are read faster.
    """
    if dtype == torch.float32 and source == torch.bfloat16 and panels.runs(shape, device):
        return panels.empty(shape[0], shape[1], source)
    if panels.is_faster(shape, dtype, device):
        return panels.empty(shape[0], shape[1], dtype)
    if device.type != "cpu" or dtype != torch.float32 or len(shape) != 2:
        return torch.empty(shape, dtype=dtype, device=device)
    rows, columns = shape
    apart = rows if rows % _SETS else rows + _APART
    columns_apart = torch.empty(columns, apart, dtype=dtype, device=device)
    return columns_apart[:, :rows].t()


def repacked(weight: Tensor) -> Tensor | None:
    """A copy of `weight` [N, K] in panels; None where panels make matmuls no faster, and of packed weights."""
    if isinstance(weight, PackedWeight) or not panels.is_faster(weight.shape, weight.dtype, weight.device):
        return None
    copy = panels.empty(weight.shape[0], weight.shape[1], weight.dtype)
    copy.fill(weight.detach())
    return copy


def dense(weight: Tensor) -> Tensor:
    """`weight` row by row, as PyTorch's own matmuls read it."""
    return weight.dense if isinstance(weight, PackedWeight) else weight


def rows_of(weight: Tensor, index: Tensor) -> Tensor:
    """[..., K] the rows `index` [...] of `weight`."""
    return weight.rows(index) if isinstance(weight, PackedWeight) else F.embedding(index, weight)


def stored(weight: Tensor) -> Tensor:
    """The plain tensor that holds the numbers of `weight`, in any order."""
    return weight.packed if isinstance(weight, panels.Panels) else weight


def fill(weight: Tensor, source: Tensor, start: int = 0) -> None:
    """Copies `source` [n, ...] to the rows from `start` on of `weight` [N, ...], whatever their layouts."""
    if isinstance(weight, panels.Panels):
        weight.fill(source, start)
        return
    target = weight[start : start + len(source)]
    if target.stride() == source.stride() or target.dim() < 2:
        target.copy_(source)
        return
    for to, rows in zip(torch.split(target, _STRIP), torch.split(source, _STRIP), strict=True):
        to.copy_(rows)
