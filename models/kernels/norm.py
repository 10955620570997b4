"""RMSNorm: norm(x) = x / sqrt(mean(x^2) + eps) * w, in float32 whatever x is."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., E] normalised and multiplied by `weight` [E], in x's dtype."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.requires_grad:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    # On a CPU the library's is a dozen small operations, where five do.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(_constant(eps), length, length, value=1 / x.shape[-1])
    return (x * mean_square.rsqrt_()).mul_(weight)


@cache
def _constant(value: float) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, device="cpu")
