"""Jacobi iterations under sampling: with fixed noise at each position a sample is a function of the tokens before it.

Accelerating Feedforward Computation via Parallel Nonlinear Equation Solving, https://arxiv.org/abs/2002.03629
Accelerating Transformer Inference for Translation via Parallel Decoding, https://arxiv.org/abs/2305.10427

    y_i <- argmax (log p(. | text, y_1 .. y_(i-1)) + G_i),  G_i Gumbel noise of position i, the same in every round

The fixed point is the text that sequential sampling with this noise gives, which is a sample of the target's
distribution. It is `jacobi` with the acceptance `match:noise=seeded` as its default.

Deviates from the papers, which iterate greedily. At temperature 0 it is `jacobi`.
Exact: greedy and distribution, unless a block may be left early.
"""

from __future__ import annotations

from typing import ClassVar

from ...registry import register
from ...traits import Reasons, Trait, Why
from .jacobi_window import JacobiWindow


@register("seeded_jacobi", exact="greedy", checked="joint")
class SeededJacobi(JacobiWindow):
    name: ClassVar[str] = "seeded_jacobi"
    default_acceptance: ClassVar[str | None] = "match:noise=seeded"

    @property
    def requires(self) -> Reasons:
        other = f"leave the acceptance out (default: {self.default_acceptance}), or draft with jacobi"
        return {
            Trait.SEEDED: Why("{me} converges only with seeded samples, and {other} does not seed its samples", other)
        }
