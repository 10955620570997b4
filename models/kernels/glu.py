"""The gate of an MLP (GLU): activation(gate) * up, gate and up being the halves of one matmul's result."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..decoder_config import Activation
from .cpu.layer import swiglu_c


def glu(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """[..., M] of `gate_up` [..., 2 M], which may be overwritten where nothing is to be differentiated."""
    gate, up = gate_up.chunk(2, -1)
    if activation != "silu":
        return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up
    # In place where nothing is to be differentiated: a fresh tensor of this size costs more than the arithmetic.
    return F.silu(gate) * up if gate_up.requires_grad else F.silu(gate, inplace=True).mul_(up)


def glu_c(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """`glu` in C, for the activation that it has."""
    return swiglu_c(gate_up) if activation == "silu" else glu(gate_up, activation)
