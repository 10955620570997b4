"""Guesses a window of tokens, and in every forward replaces each guess by the target's pick given the guesses before.

Accelerating Transformer Inference for Translation via Parallel Decoding, https://arxiv.org/abs/2305.10427
CLLMs: Consistency Large Language Models, https://arxiv.org/abs/2403.00835 (policy=block, init=prompt)
CEED-VLA, https://arxiv.org/abs/2506.13725 (exit_iterations, exit_tokens)

    y_i <- argmax p(. | text, y_1 .. y_(i-1))  for all i of the window at once;  the unchanged prefix is committed

Deviates from the papers: converged tokens are committed at once, `sliding` refills the window in every round, and the
pick after the last position begins the next block. After an early exit, the forward that computes the K/V of the
accepted tokens is the first one of the next block, and costs nothing more.
Exact: greedy, and distribution with an exact acceptance, unless a block may be left early.
"""

from __future__ import annotations

from typing import ClassVar

from ...registry import register
from .jacobi_window import JacobiWindow


@register(
    "jacobi",
    exact="greedy",
    checked="golden/llamagen reference:reference.naive_jacobi.sliding reference:reference.naive_jacobi.block joint",
)
class Jacobi(JacobiWindow):
    name: ClassVar[str] = "jacobi"
