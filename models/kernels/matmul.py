"""Matmuls x @ W.T of plain and packed weights, alone or added to a residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cpu.packed import PackedWeight


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] @ weight [N, K].T (+ bias [N]): [..., N]."""
    if isinstance(weight, PackedWeight):
        return weight.matmul(x, bias)
    return F.linear(x, weight, bias)


def add_matmul(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """h [M, N] + x [M, K] @ weight [N, K].T (+ bias [N]), added by the matmul itself where possible."""
    if isinstance(weight, PackedWeight):
        out = weight.matmul(x, h)
        return out if bias is None else out.add_(bias)
    if type(weight) is not nn.Parameter:  # quantized: such weights support only F.linear
        return h + F.linear(x, weight, bias)
    out = torch.addmm(h, x, weight.t())
    return out if bias is None else out + bias


def add_matmul_into(h: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """h [M, N] += x [M, K] @ weight [N, K].T, of a plain weight; returns h. A sum elsewhere would copy h first."""
    return h.addmm_(x, weight.t())


def matmul_into(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Writes x [M, K] @ weight [N, K].T to `out` [M, N], of any type, whose rows need not be contiguous."""
    if isinstance(weight, PackedWeight):
        weight.matmul_into(out, x)
    else:
        out.copy_(matmul(x, weight))


class Linear(nn.Linear):
    """nn.Linear by `matmul`."""

    again: Tensor | None = None  # a second copy of a shared weight, in the layout of fast matmuls

    def forward(self, input: Tensor) -> Tensor:
        return matmul(input, self.weight if self.again is None else self.again, self.bias)
