"""Matmuls with weights, x @ W.T, alone or added to a residual.

PyTorch gives float32 matmuls on x86 to MKL, which keeps AVX-512 for Intel's own processors: on others that have it,
oneDNN, which PyTorch holds too, takes half the time or less. It compiles a kernel for each new shape and takes some
10 µs to find one again, so that small matmuls stay where they are. Large matrices lie in panels where pardec's own
matmul is faster than either.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import layout
from .cpu.packed import PackedWeight
from .variable import forced

_CHUNK = 2**23  # entries computed at once into rows with gaps, which are then removed
_LEAST = 2**20  # with fewer multiplications, finding oneDNN's kernel costs more than it saves


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] @ weight [N, K].T (+ bias [N]): [..., N]."""
    if isinstance(weight, PackedWeight):
        return weight.matmul(x, bias)
    whole = _for_onednn(x, weight)
    if whole is None:
        return F.linear(x, weight, bias)
    if whole is weight:
        return _onednn(x, weight, bias)
    if x.numel() // whole.shape[1] * whole.shape[0] > _CHUNK:
        return _in_chunks(x, weight, whole, bias)
    out = _onednn(x, whole, None)[..., : weight.shape[0]]
    return out.contiguous() if bias is None else out + bias


def add_matmul(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """h [M, N] + x [M, K] @ weight [N, K].T (+ bias [N]), added by the matmul itself where possible."""
    if isinstance(weight, PackedWeight):
        out = weight.matmul(x, h)
        return out if bias is None else out.add_(bias)
    if type(weight) is not nn.Parameter:  # quantized: such weights support only F.linear
        return h + F.linear(x, weight, bias)
    whole = _for_onednn(x, weight)
    if whole is not None:
        out = h + _onednn(x, whole, bias if whole is weight else None)[..., : weight.shape[0]]
        return out if bias is None or whole is weight else out.add_(bias)
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
        weight = self.weight if self.again is None else self.again
        if type(weight) is nn.Parameter and not onednn_is_faster():
            return F.linear(input, weight, self.bias)
        return matmul(input, weight, self.bias)


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster here than F.linear does; False where PyTorch does not say.

    The processor's name decides and no measurement, so that a machine rounds the same way every time.
    """
    about: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    backends: Any = torch.backends
    return (
        forced() != "reference"
        and backends.mkl.is_available()
        and backends.mkldnn.is_available()
        and "AMD" in str(about.get("cpu_name"))
        and backends.cpu.get_cpu_capability() == "AVX512"
    )


def _for_onednn(x: Tensor, weight: Tensor) -> Tensor | None:
    """`weight` including the gaps between its columns, in the form for oneDNN; None if F.linear should run."""
    if (
        not onednn_is_faster()
        or x.numel() * weight.shape[0] < _LEAST
        or x.dtype is not torch.float32
        or not x.is_cpu
        or type(weight) is not nn.Parameter
        or weight.requires_grad
        or x.requires_grad
    ):
        return None
    return layout.whole(weight)


def _in_chunks(x: Tensor, weight: Tensor, whole: Tensor, bias: Tensor | None) -> Tensor:
    """The matmul, a few rows at a time, so that the padded result exists only for these rows."""
    (count, columns), step = weight.shape, max(1, _CHUNK // whole.shape[0])
    out = x.new_empty(*x.shape[:-1], count)
    parts = torch.split(x.reshape(-1, columns), step), torch.split(out.view(-1, count), step)
    for rows, result in zip(*parts, strict=True):
        result.copy_(_onednn(rows, whole, None)[:, :count])
    return out if bias is None else out.add_(bias)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = _kernel()(x, weight, bias, "none", [], "")
    return out


@cache
def _kernel() -> Any:
    return torch.ops.mkldnn._linear_pointwise.default
