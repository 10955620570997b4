"""The gate of a SwiGLU block: silu(gate) * up, gate and up being the halves of one product."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .choice import Backend
from .cpu.layer import gated_c


def gated(both: Tensor, chosen: Backend = "reference") -> Tensor:
    """[..., M] of `both` [..., 2 M], which may be overwritten where nothing is to be differentiated."""
    if chosen == "triton":
        from .swiglu_triton import gated_triton

        return gated_triton(both)
    if chosen == "c":
        return gated_c(both)
    gate, up = both.chunk(2, -1)
    # In place where nothing is to be differentiated: a fresh tensor of this size costs more than the arithmetic.
    return F.silu(gate) * up if both.requires_grad else F.silu(gate, inplace=True).mul_(up)
