"""The random numbers of one round, as acceptances and drafters ask for them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class Uniforms(Protocol):
    """A round's random numbers: keyed by seed, or recorded ones replayed in a test."""

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        """[B] uniforms in (0, 1), float64, for the test of `node`, of `token` [B], in the rows `tested` [B]."""

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        """[B] int64: one index a row, sampled in proportion to `weights` [B, V], at least 0."""

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        """[B, K, width] uniforms for absolute `positions` [B, K]; `fixed`: the same each round, for one use only."""


@runtime_checkable
class BatchedUniforms(Protocol):
    """Uniforms that do not depend on which tests take place, so that a round's can be generated at once."""

    def accepts(self, width: int) -> Tensor:
        """[B, width]: what `accept` gives for each node."""


@runtime_checkable
class InverseCDFUniforms(BatchedUniforms, Protocol):
    """Uniforms whose `draw` is the inverse CDF of one uniform a row, so that a kernel can do it."""

    def draw_uniform(self, purpose: str, node: int = 0) -> Tensor:
        """[B] float64: the uniforms behind `draw`."""
