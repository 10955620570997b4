"""DFlash 2's causal convolutions over the positions of a block, around attention and MLP.

DFlash 2, https://github.com/z-lab/dflash (`DFlash2DraftModel`)

    out[i, c] = sum over taps t of (base[t, c] + d[i, t, g(c)]) x[i - t, c];   d = P x, g(c) the group of channel c

x is 0 before the block. One projection of a layer's input gives the kernels of its input and of its output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..kernels.matmul import matmul


class BlockConvolution(nn.Module):
    """The two convolutions around one layer, over the positions of each block."""

    def __init__(self, width: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        self.base = nn.Parameter(torch.empty(2, taps, width))
        self.projection = nn.Parameter(torch.empty(2 * taps * (width // group), width))

    def kernels(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels of input and output, both [B, Q, T, G], computed from a layer's `inputs` [B, Q, E]."""
        both = matmul(inputs.flatten(0, 1), self.projection).view(*inputs.shape[:2], 2, self.taps, -1)
        before, after = both.unbind(2)
        return before, after

    def forward(self, x: Tensor, kernel: Tensor, side: int) -> Tensor:
        """x [B, Q, E] convolved with `kernel` [B, Q, T, G], `side` 0 being the input and 1 the output."""
        width = x.shape[1]
        groups = (*kernel.shape, self.group)  # [B, Q, T, G, C]
        weight = self.base[side].to(x.dtype).view(groups[2:]) + kernel[..., None]
        shifted = torch.stack([pad(x, (0, 0, tap, 0))[:, :width] for tap in range(self.taps)], 2)
        return (weight * shifted.view(groups)).sum(2).flatten(-2)
