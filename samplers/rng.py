"""Keyed randomness: every uniform is a pure function of (row seed, step, position, purpose, rank).

There is no state and no global seed, so that a row with its seed draws the same uniforms alone, in any batch and on any
device. A mixing function in the style of SplitMix64 (Steele, Lea and Flood, 2014) is applied per key.
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

from .host_transfer import upload


class Source(Protocol):
    """The source of uniforms for stages: keyed by seed, or recorded numbers replayed in a test."""

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        """Uniforms in (0, 1), float64.

        Args:
            rows: [B] index of each row in the request.
            step: [B] clock of each row; 0 where the uniform must not change from step to step.
            positions: [B, K] absolute positions.
            purpose: what the uniform decides, e.g. "token" or "order"; purposes are independent of each other.
            width: 0 for one uniform a position ([B, K]), else that many ([B, K, width]).
        """
        ...


@dataclass(frozen=True)
class Keyed:
    """The default source, keyed by the seed of each row.

    >>> Keyed((7,)).uniform(np.array([0]), np.array([3]), torch.tensor([[5]]), "token").shape
    torch.Size([1, 1])
    """

    seeds: tuple[int, ...]  # one per row of the request

    @cached_property
    def _seeds(self) -> np.ndarray:
        return np.array([_signed(seed) for seed in self.seeds])

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        key = self._key(rows, step, purpose)
        if positions.device.type == "cpu":
            return torch.from_numpy(_on_host(key, positions.numpy(), width))
        return _on_device(upload(key, positions.device), positions, width)

    def keys(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str) -> Tensor:
        """[B, K] int64: a key for each position; a kernel computes from it what `uniform` draws with a width."""
        key = upload(self._key(rows, step, purpose), positions.device)
        return _mix(key[:, None] + positions * _GOLDEN)

    def row_keys(self, rows: np.ndarray, purpose: str) -> np.ndarray:
        """[B] int64: the part of a key that does not depend on step and position, for `keys_at`."""
        return _mix_(self._seeds[rows] ^ _salt(purpose))

    def seeds_of(self, rows: np.ndarray) -> np.ndarray:
        """[B] int64: the seeds of `rows`, for `DeviceSeeds`."""
        seeds: np.ndarray = self._seeds[rows]
        return seeds

    def _key(self, rows: np.ndarray, step: np.ndarray, purpose: str) -> np.ndarray:
        return _mix_(self.row_keys(rows, purpose) + step * _GOLDEN)


class JoinableSource:
    """Like `Keyed`, but new rows can take the indices of finished rows (`assign_rows`)."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.keyed = Keyed(tuple(seeds))

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        return self.keyed.uniform(rows, step, positions, purpose, width)

    def keys(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str) -> Tensor:
        return self.keyed.keys(rows, step, positions, purpose)

    def row_keys(self, rows: np.ndarray, purpose: str) -> np.ndarray:
        return self.keyed.row_keys(rows, purpose)

    def seeds_of(self, rows: np.ndarray) -> np.ndarray:
        return self.keyed.seeds_of(rows)


@dataclass(frozen=True, eq=False)
class DeviceSeeds:
    """Draws what `Keyed` does, where the seeds [B] and the clocks are on the device, as within a CUDA graph."""

    seeds: Tensor

    def uniform(self, rows: object, step: Tensor, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        keys = keys_at(_mix(self.seeds ^ _salt(purpose)), step, positions)
        return uniforms(keys, width) if width else _as_uniforms(keys)


def assign_rows(source: Source, rows: np.ndarray, other: Source, theirs: np.ndarray) -> None:
    """Makes `rows` [n], which may be new, draw from the seeds of rows `theirs` [n] of another request."""
    assert isinstance(source, JoinableSource), "rows can only join a request with a joinable source"
    assert isinstance(other, JoinableSource), "and only from one with another"
    seeds = list(source.keyed.seeds)
    seeds += [0] * (int(rows.max(initial=-1)) + 1 - len(seeds))
    for row, old in zip(rows.tolist(), theirs.tolist(), strict=True):
        seeds[row] = other.keyed.seeds[old]
    source.keyed = Keyed(tuple(seeds))


def row_seeds(seed: int | list[int], count: int) -> tuple[int, ...]:
    """Returns one seed per row: the list itself, or seeds derived from (seed, i) for row i."""
    if isinstance(seed, int):
        return tuple(_derived(seed, np.arange(count)).tolist())
    return tuple(seed)


def row_seed(seed: int, row: int) -> int:
    """The seed of row `row`, as in `row_seeds`."""
    return int(_derived(seed, np.array([row]))[0])


def _derived(seed: int, rows: np.ndarray) -> np.ndarray:
    """The seeds [n] of `rows` [n], derived from `seed`."""
    return _mix_(_mix_(np.array([_signed(seed)])) + rows * _GOLDEN)


def keys_at(row_keys: Tensor, step: Tensor, positions: Tensor) -> Tensor:
    """`Keyed.keys` for `row_keys` [B] and clocks `step` [B] on the device of `positions` [B, K]."""
    return _mix(_mix(row_keys + step * _GOLDEN)[:, None] + positions * _GOLDEN)


def uniforms(keys: Tensor, width: int) -> Tensor:
    """[..., width]: what `Keyed.uniform` draws with a width, from the `keys` [...] of the positions."""
    return _as_uniforms(_widened(keys, width))


def wide(values: Tensor) -> Tensor:
    """`values` in float64, or float32 on Apple's GPUs, which have no float64."""
    return values.float() if values.device.type == "mps" else values.double()


def gumbel(uniform: Tensor) -> Tensor:
    """Standard Gumbel noise from uniforms in float64 (see `wide`); lower precision cuts the tail (arXiv:2409.02908)."""
    return torch.log(uniform).neg_().log_().neg_()


def _salt(purpose: str) -> int:
    return _signed(zlib.crc32(purpose.encode()) << 32)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_ROUNDS = ((30, _FIRST), (27, _SECOND), (31, 1))  # shift, factor
# (52 random bits + 1/2) / 2**52 is exact in float64, which has 53 bits, and is never 0 or 1.
_MASK52, _HALF, _UNIT = (1 << 52) - 1, 0.5, 2.0**-52


def _mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64; the shifts are made logical by masking the copied sign bits."""
    bits = bits + _GOLDEN
    for shift, factor in _ROUNDS:
        bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return bits


def _on_device(key: Tensor, positions: Tensor, width: int) -> Tensor:
    """`Keyed.uniform` computed with PyTorch from each row's `key` [B] and `positions` [B, K]."""
    bits = _mix(key[:, None] + positions * _GOLDEN)
    return _as_uniforms(_widened(bits, width) if width else bits)


def _widened(keys: Tensor, width: int) -> Tensor:
    return _mix(keys[..., None] + torch.arange(1, width + 1, device=keys.device) * _GOLDEN)


def _as_uniforms(bits: Tensor) -> Tensor:
    return wide((bits >> 12) & _MASK52).add_(_HALF).mul_(_UNIT)


def _on_host(key: np.ndarray, positions: np.ndarray, width: int) -> np.ndarray:
    """Like `_on_device` but twice as fast, with numpy, which shifts unsigned integers in place."""
    bits = _mix_(key[:, None] + positions * _GOLDEN)
    if width:
        bits = _mix_(bits[..., None] + np.arange(1, width + 1) * _GOLDEN)
    bits.view(np.uint64)[...] >>= np.uint64(12)
    uniform = bits.astype(np.float64)
    uniform += _HALF
    uniform *= _UNIT
    return uniform


def _mix_(bits: np.ndarray) -> np.ndarray:
    """`_mix` of an int64 array in place."""
    bits += _GOLDEN
    unsigned = bits.view(np.uint64)
    shifted = np.empty_like(unsigned)
    for shift, factor in _ROUNDS:
        np.right_shift(unsigned, np.uint64(shift), out=shifted)
        unsigned ^= shifted
        if factor != 1:
            bits *= factor
    return bits
