"""The tables of rotary position embedding, along a line or over a grid: cosines and signed sines in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from ..decoder_config import AttentionConfig, DecoderConfig
from ..errors import ModelError
from ..plan import Plan

_WIDEST = 2**16  # maximum head dimension


def default_frequencies(theta: float, dim: int) -> Tensor:
    """theta^(-2i/dim) for i < dim/2 -> float32 [dim/2]. Raises ModelError for a head that no model has."""
    if not 0 < dim <= _WIDEST:
        raise ModelError(f"a head of {dim} dimensions cannot be rotated", f"at most {_WIDEST} dimensions are supported")
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


class Rope:
    """Cosine and signed sine of every position; the tables grow with the longest sequence."""

    def __init__(self, frequencies: Tensor, scale: float = 1.0) -> None:
        """`frequencies` float32 [R/2] rotate the first R dimensions of each head; `scale` multiplies both tables."""
        self.frequencies = frequencies
        self.scale = scale
        self.dim = 2 * frequencies.numel()
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._frequencies: dict[torch.device, Tensor] = {}

    @classmethod
    def of(cls, config: DecoderConfig | AttentionConfig) -> Rope:
        """The rotation of a decoder, or of one of its layers; its frequencies are on the CPU, whatever the context."""
        return cls(torch.tensor(config.frequencies, device="cpu"), config.rope_scale)

    def tables(self) -> list[Tensor]:
        """The tables that `rows` currently reads."""
        return [*self._frequencies.values(), *(table for both in self._tables.values() for table in both)]

    def rows(self, plan: Plan, *, limit: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos, signed sin for the plan's queries, each float32 [B or 1, Q, 1, R]. `limit`: positions stay below it."""
        if plan.span is not None:
            start, stop = plan.span
            table = self._tables.get(device)
            cos, sin = table if table is not None and len(table[0]) >= stop else self.table(stop, device)
            return cos[None, start:stop], sin[None, start:stop]
        positions = plan.positions.to(device).clamp(min=0)
        if limit is None:
            return self._angles(positions)
        cos, sin = self.table(limit, device)
        return cos[positions], sin[positions]

    def at(self, positions: Tensor, origins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """cos, signed sin at `positions` [1, S], each float32 [1, S, 1, R]."""
        return self._angles(positions)

    def table(self, limit: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos, signed sin at all positions below `limit` and some after them, each float32 [P, 1, R]."""
        table = self._tables.get(device)
        if table is None or table[0].shape[0] < limit:
            size = 1 << max(6, (limit - 1).bit_length())
            with torch.inference_mode(False):  # training may use the tables later
                table = self._angles(torch.arange(size, device=device))
            self._tables[device] = table
        return table

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        device = positions.device
        if device not in self._frequencies:
            self._frequencies[device] = self.frequencies.to(device)
        angle = positions[..., None].float() * self._frequencies[device]
        cos, sin = angle.cos() * self.scale, angle.sin() * self.scale
        return torch.cat((cos, cos), -1).unsqueeze(-2), torch.cat((-sin, sin), -1).unsqueeze(-2)


class GridRope:
    """Cosine and signed sine of an image's token grid, row by row; queries and keys before the image become zero.

    Of the angles of the token at (r, c) the first half are r f_k, the others c f_k (LlamaGen,
    https://arxiv.org/abs/2406.06525). The tables are zero, not the identity, for the rows of the condition.
    """

    def __init__(self, frequencies: Tensor, side: int) -> None:
        """`frequencies` float32 [R/4] rotate a quarter of the dimensions by the row, and one by the column."""
        self.side, self.dim = side, 4 * frequencies.numel()
        index = torch.arange(side * side, device=frequencies.device)
        angle = torch.cat([at[:, None] * frequencies for at in (index // side, index % side)], -1)  # [tokens, R/2]
        cos, sin = angle.cos(), angle.sin()
        both = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)))
        self._cpu = torch.nn.functional.pad(both, (0, 0, 1, 0))  # [2, 1 + tokens, R]
        self._tables: dict[torch.device, Tensor] = {}

    def tables(self) -> list[Tensor]:
        """The tables that `rows` currently reads."""
        return list(self._tables.values())

    def rows(self, plan: Plan, *, limit: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos, signed sin for the plan's queries, each float32 [B, Q, 1, R]."""
        table = self._tables.get(device)
        if table is None:
            with torch.inference_mode(False):
                table = self._tables[device] = self._cpu.to(device)
        return self._rows(table, plan.positions.to(device), None if plan.origin is None else plan.origin.to(device))

    def at(self, positions: Tensor, origins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """cos, signed sin at `positions` [1, S] of rows whose images begin at `origins` [B], each [B or 1, S, 1, R]."""
        return self._rows(self._cpu.to(positions.device), positions, origins)

    def _rows(self, table: Tensor, positions: Tensor, origins: Tensor | None) -> tuple[Tensor, Tensor]:
        index = positions + 1
        if origins is not None:
            index = index - origins[:, None]
        cos, sin = table[:, index.clamp(0, self.side * self.side)]
        return cos.unsqueeze(-2), sin.unsqueeze(-2)
