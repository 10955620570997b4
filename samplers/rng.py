"""Keyed randomness: every uniform is a pure function of (row seed, step, position, purpose, rank).

No state is carried and no global seed is touched, so a row with its seed draws the same numbers alone, in any batch
and on any device. A mixing function in the style of SplitMix64 (Steele, Lea and Flood, 2014) is applied per key.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

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
        key = _mix_(_mix_(self._seeds[rows] ^ salt) + step * _GOLDEN)
        if positions.device.type == "cpu":
            return torch.from_numpy(_on_host(key, positions.numpy(), width))
        return _on_device(torch.from_numpy(key).to(positions.device), positions, width)


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
    return torch.log(uniform).neg_().log_().neg_()


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_ROUNDS = ((30, _FIRST), (27, _SECOND), (31, 1))  # shift, factor
# 52 bits and a half: the 53 that a float64 holds, so that neither 0 nor 1 can come out.
_MASK52, _HALF, _UNIT = (1 << 52) - 1, 0.5, 2.0**-52


def _mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64; masking the copied sign bits away makes the shifts logical."""
    bits = bits + _GOLDEN
    for shift, factor in _ROUNDS:
        bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return bits


def _on_device(key: Tensor, positions: Tensor, width: int) -> Tensor:
    """`Keyed.uniform` of each row's `key` [B] and `positions` [B, K]."""
    bits = _mix(key[:, None] + positions * _GOLDEN)
    if width:
        bits = _mix(bits[..., None] + torch.arange(1, width + 1, device=positions.device) * _GOLDEN)
    return wide((bits >> 12) & _MASK52).add_(_HALF).mul_(_UNIT)


def _on_host(key: np.ndarray, positions: np.ndarray, width: int) -> np.ndarray:
    """The same in half a processor's time: numpy shifts without a sign, and in place."""
    bits = _mix_(key[:, None] + positions * _GOLDEN)
    if width:
        bits = _mix_(bits[..., None] + np.arange(1, width + 1) * _GOLDEN)
    bits.view(np.uint64)[...] >>= np.uint64(12)
    made = bits.astype(np.float64)
    made += _HALF
    made *= _UNIT
    return made


def _mix_(bits: np.ndarray) -> np.ndarray:
    """`_mix` of an int64 array in place."""
    bits += _GOLDEN
    free = bits.view(np.uint64)
    moved = np.empty_like(free)
    for shift, factor in _ROUNDS:
        np.right_shift(free, np.uint64(shift), out=moved)
        free ^= moved
        if factor != 1:
            bits *= factor
    return bits
