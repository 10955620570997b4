"""A window that slides over the text, for windowed-causal families: known tokens at its front are final.

WeDLM: Reconciling Diffusion Language Models with Standard Causal Attention for Fast Inference,
https://arxiv.org/abs/2512.22737

    queried = [f, o + W): o the first open position, f that of the forward before; W is `block_length`

Such a model sees known tokens before masks, each at its own position, under a causal mask. Tokens before the first
open position see only final tokens, so that their K/V, computed once more in the next forward, are reused after that;
the window's other tokens are queried again at every step. `slide=false` fills block after block instead, with the same
K/V. The published engine's masks run past the end of the request, where pardec's window ends with it.
Exact: greedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Cache, Canvas, QuerySpec


@dataclass
class State:
    """Of each row, how many positions from its start have K/V that are final."""

    final: np.ndarray  # [B]


@register("window", exact="greedy", checked="golden/wedlm")
class Window(Cache):
    attention = "windowed-causal"

    slide: Annotated[bool, "the block always begins at the first open position"] = True

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.SLIDES} if self.slide else super().provides

    @property
    def conflicts(self) -> Reasons:
        counts = "{other} divides its steps among blocks, and a sliding window has no blocks"
        return {Trait.COUNTS_STEPS: Why(counts, "write @window:slide=false, or another select")} if self.slide else {}

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros_like(canvas.block_start))

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        start, state.final = state.final, canvas.first_open
        return QuerySpec(start, canvas.end)

    def final(self, state: State) -> np.ndarray:
        return state.final
