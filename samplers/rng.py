"""Keyed randomness: every uniform is a pure function of (row seed, step, position, purpose, rank).

No state is carried and no global seed is touched, so a row with its seed draws the same numbers alone, in any batch
and on any device. A mixing function in the style of SplitMix64 (Steele, Lea and Flood, 2014) is applied per key.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Source(Protocol):
    """Where stages take their uniforms from: keyed by seed, or recorded numbers replayed in a test."""

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        """Uniforms in (0, 1), float64.

        Args:
            rows: [B] index of each row in the request.
            step: [B] clock of each row; 0 where the number must not change from step to step.
            positions: [B, K] absolute positions.
            purpose: what the number decides, e.g. "token" or "order"; purposes are independent of each other.
            width: 0 for one number a position ([B, K]), else that many ([B, K, width]).
        """
        ...


@dataclass(frozen=True)
class Keyed:
    """The default source.

    >>> Keyed((7,)).uniform(np.array([0]), np.array([3]), torch.tensor([[5]]), "token").shape
    torch.Size([1, 1])
    """

    seeds: tuple[int, ...]  # one a row of the request

    @cached_property
    def _seeds(self) -> np.ndarray:
        return np.array([_signed(seed) for seed in self.seeds])

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        salt = _signed(zlib.crc32(purpose.encode()) << 32)
        key = _mix(_mix(self._seeds[rows] ^ salt) + step * _GOLDEN)
        bits: Any
        if positions.device.type == "cpu" and positions.numel() * max(width, 1) <= _FEW:
            bits = _mix(key[:, None] + positions.numpy() * _GOLDEN)
            if width:
                bits = _mix(bits[..., None] + np.arange(1, width + 1) * _GOLDEN)
            return torch.from_numpy((((bits >> 12) & _MASK52) + 0.5) * 2.0**-52)
        bits = _mix(torch.from_numpy(key).to(positions.device)[:, None] + positions * _GOLDEN)
        if width:
            bits = _mix(bits[..., None] + torch.arange(1, width + 1, device=positions.device) * _GOLDEN)
        # 52 bits and a half: the 53 that a float64 holds, so that neither 0 nor 1 can come out.
        return wide((bits >> 12) & _MASK52).add_(0.5).mul_(2.0**-52)


class Seats:
    """Like `Keyed`, where rows that are done give their number to others."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.keyed = Keyed(tuple(seeds))

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        return self.keyed.uniform(rows, step, positions, purpose, width)


def seat(source: Source, rows: np.ndarray, other: Source, theirs: np.ndarray) -> None:
    """From now on these rows [n] draw from the seeds of rows `theirs` [n] of another request; both have `Seats`."""
    assert isinstance(source, Seats), "rows can only join where there are seats"
    assert isinstance(other, Seats), "and only from where they had some"
    seeds = list(source.keyed.seeds)
    for row, old in zip(rows.tolist(), theirs.tolist(), strict=True):
        seeds[row] = other.keyed.seeds[old]
    source.keyed = Keyed(tuple(seeds))


def row_seeds(seed: int | list[int], count: int) -> tuple[int, ...]:
    """One seed a row: a list is taken as it is, a single seed gives row i the one derived from (seed, i)."""
    if isinstance(seed, int):
        first = _mix(torch.tensor(_signed(seed)))
        return tuple(_mix(first + torch.arange(count) * _GOLDEN).tolist())
    return tuple(seed)


def row_seed(seed: int, row: int) -> int:
    """What `row_seeds` gives row `row`."""
    return int(_mix(_mix(torch.tensor([_signed(seed)])) + torch.tensor([row]) * _GOLDEN))


def wide(values: Tensor) -> Tensor:
    """In float64; in float32 on Apple's GPUs, which have no wider type."""
    return values.float() if values.device.type == "mps" else values.double()


def gumbel(uniform: Tensor) -> Tensor:
    """Standard Gumbel noise from uniforms in float64 (see `wide`); lower precision cuts the tail (arXiv:2409.02908)."""
    return -torch.log(-torch.log(uniform))


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_MASK52 = (1 << 52) - 1
_FEW = 2048  # numbers that numpy makes faster than torch: most of the time would go into dispatches


def _mix(bits: Any) -> Any:
    """SplitMix64's finaliser on int64 arrays or tensors; masking the copied sign bits away makes the shifts logical."""
    bits = bits + _GOLDEN
    bits = (bits ^ ((bits >> 30) & ((1 << 34) - 1))) * _FIRST
    bits = (bits ^ ((bits >> 27) & ((1 << 37) - 1))) * _SECOND
    return bits ^ ((bits >> 31) & ((1 << 33) - 1))
