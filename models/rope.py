"""Rotary position embedding: half-split rotation by tables kept in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import Plan


def default_frequencies(theta: float, dim: int) -> Tensor:
    """theta^(-2i/dim) for i < dim/2 -> float32 [dim/2]."""
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


class Rope:
    """Cosine and signed sine of every position, grown as longer sequences arrive."""

    def __init__(self, frequencies: Tensor, scale: float = 1.0) -> None:
        """`frequencies` float32 [R/2] turn the first R of each head's dimensions; `scale` multiplies both tables."""
        self.frequencies = frequencies
        self.scale = scale
        self.dim = 2 * frequencies.numel()
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def rows(self, plan: Plan, *, limit: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos, signed sin for the plan's queries, each float32 [B or 1, Q, 1, R]. `limit`: positions stay below it."""
        if plan.span is not None:
            start, stop = plan.span
            cos, sin = self._table(stop, device)
            return cos[None, start:stop], sin[None, start:stop]
        positions = plan.positions.to(device).clamp(min=0)
        if limit is None:
            return self._angles(positions)
        cos, sin = self._table(limit, device)
        return cos[positions], sin[positions]

    def _table(self, limit: int, device: torch.device) -> tuple[Tensor, Tensor]:
        table = self._tables.get(device)
        if table is None or table[0].shape[0] < limit:
            size = 1 << max(6, (limit - 1).bit_length())
            with torch.inference_mode(False):  # training may use the tables later
                table = self._angles(torch.arange(size, device=device))
            self._tables[device] = table
        return table

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions[..., None].float() * self.frequencies.to(positions.device)
        cos, sin = angle.cos() * self.scale, angle.sin() * self.scale
        return torch.cat((cos, cos), -1).unsqueeze(-2), torch.cat((-sin, sin), -1).unsqueeze(-2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the leading R dimensions of x [B, Q, H, D] in float32; `sin` carries the sign of the half-split."""
    dim = cos.shape[-1]
    half = dim // 2
    turned = x[..., :dim].float()
    low, high = turned.chunk(2, -1)
    out = turned * cos
    out[..., :half].addcmul_(high, sin[..., :half])
    out[..., half:].addcmul_(low, sin[..., half:])
    out = out.to(x.dtype)
    return out if dim == x.shape[-1] else torch.cat((out, x[..., dim:]), -1)
