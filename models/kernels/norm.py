"""RMSNorm, alone or behind a residual sum.

norm(x) = x / sqrt(mean(x^2) + eps) * w, in float32 whatever x is;   add_norm(h, x) = h + x, norm(h + x)
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .choice import Backend
from .cpu.layer import norm_c


def norm(x: Tensor, weight: Tensor | None, eps: float, chosen: Backend = "reference") -> Tensor:
    """x [..., E] normalised and multiplied by `weight` [E], in x's dtype."""
    if chosen == "triton" and weight is not None:
        from .norm_triton import norm_triton

        return norm_triton(x, weight, eps)
    if chosen == "c" and weight is not None:
        return norm_c(x, weight, eps)
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.requires_grad or weight is None:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    # On a CPU the library's is a dozen small operations, where five do.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(_constant(eps), length, length, value=1 / x.shape[-1])
    return (x * mean_square.rsqrt_()).mul_(weight)


def add_norm(h: Tensor, x: Tensor, weight: Tensor, eps: float, chosen: Backend = "reference") -> tuple[Tensor, Tensor]:
    """h + x, in h's dtype, and its norm; both [..., E]."""
    if chosen == "triton":
        from .norm_triton import add_norm_triton

        return add_norm_triton(h, x, weight, eps)
    total = h + x
    return total, norm(total, weight, eps)


@cache
def _constant(value: float) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, device="cpu")
