"""A window that slides over causal text: the last token and masks after it, which see the text and each other.

Sequential Diffusion Language Models (SDLM), https://arxiv.org/abs/2509.24007

    queried = [o' - 1, o + D - 1): o the first open position, o' that of the forward before; D is `block_length`
    from o - 1 on all see each other and all before, and predict o .. o + D - 1; before that, text is causal

The last token saw masks, so that its K/V, computed once more in the next forward, are final only then: text has the K/V
of a causal model. With `contiguous` a forward commits the confident tokens at the window's front (`preset:sdlm`). In
families whose positions predict themselves the window is [o, o + D).
Their self-speculation is `freedave:drafts=3+leftmost+sequential` in windows of 4 (`preset:sdlm-verified`): one forward
has a window after each prefix of the draft, whose first token verifies the next one, and the text is that of the first
token of each window. With attention="causal", `linearspec` verifies such windows by the causal model instead.
Deviates from the authors' code: there the last token is fed twice, as text and in the window, with the same result; and
there the masks run past the end of the request, where the window here ends with it.
Exact: greedy, by the family's own definition of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Cache, Canvas, QuerySpec


@dataclass
class State:
    """The length of each row up to which stored K/V are final."""

    final: np.ndarray  # [B]


@register("next_sequence", exact="greedy", checked="reference:models.families.test_sdlm.naive")
class NextSequence(Cache):
    attention = "causal-prefix"
    conflicts: ClassVar[Reasons] = {
        Trait.COUNTS_STEPS: Why(
            "{other} divides its steps among blocks, and a sliding window has no blocks",
            "write @causal, or another select",
        ),
        Trait.RANDOM_CANVAS: Why("{me} slides a window of masks, and {other} has no mask token", "write @causal"),
    }

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.SLIDES, Trait.KV_OF_TOKENS}

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros_like(canvas.block_start))

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        start, state.final = state.final, canvas.denoised_from
        return QuerySpec(start, canvas.end)

    def final(self, state: State) -> np.ndarray:
        return state.final
