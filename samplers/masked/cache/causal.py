"""Causal prefix: a causal forward stores finished text and also predicts the first token of the next block.

Nemotron-Labs-Diffusion, https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B

    block entered: queried = [start of the block just finished, block start), read at its last position alone
    then: queried = [block start, block end), whose positions see all before the block, and the whole block

The K/V of a block that is still open are overwritten at every step. The first token of a block is the likeliest that
the causal forward gives, or a draw from what it gives, whatever its probability. DiffusionGemma's canvases have no
such token: the forward that begins one also stores the one before.
Exact: greedy, by the family's own definition of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch

from pardec.models.model import LanguageModel

from ...registry import register
from ..contracts import Cache, Canvas, QuerySpec


@dataclass
class State:
    """The length of each row up to which stored K/V are final."""

    final: np.ndarray  # [B]


@register(
    "causal",
    paper="https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B",
    exact="greedy",
    checked="reference:models.families.test_nemotron.naive",
)
class CausalPrefix(Cache):
    attention = "causal-prefix"

    alongside: Annotated[
        bool | None, "one forward both stores the finished text and begins the block; none: only for random canvases"
    ] = None

    def fit(self, model: LanguageModel) -> CausalPrefix:
        return replace(self, alongside=model.decoding_config.uniform) if self.alongside is None else self

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros_like(canvas.block_start))

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        first = (
            canvas.block_started
            & (canvas.first_open == canvas.block_start)
            & (canvas.block_start > 0)
            & (not self.alongside)
        )
        late = canvas.block_started & ~first  # the first token is known: one forward stores and fills
        start = np.where(first | late, state.final, canvas.block_start)
        stop = np.where(first, canvas.block_start, canvas.block_end)
        state.final = canvas.block_start
        only = torch.from_numpy(~first[:, None] | (canvas.window_host == canvas.block_start[:, None]))
        at = np.arange(canvas.length + 1)
        mask = (at >= start[:, None]) & (at < stop[:, None])
        return QuerySpec(start, stop, torch.from_numpy(mask), must=first, shifted=first, only=only)

    def final(self, state: State) -> np.ndarray:
        return state.final
