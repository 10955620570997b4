"""Copies what followed an earlier occurrence of the text's last tokens, for as long as the copy is right.

CopySpec: Accelerating LLMs with Speculative Copy-and-Paste, https://arxiv.org/abs/2502.08923

    the last `suffix` tokens occurred before, most recently at s  =>  draft = text[s + suffix : s + suffix + k]
    all drafted tokens accepted, and the token after them equals the copy's  =>  the copy continues there

The whole text of the row is searched, including a chat's earlier turns: one hash table entry a token, one look-up a
round. `lookup` also uses shorter matches, and searches again in each round.

Deviates from the paper: a copy that reaches the text's end continues periodically; a single repeated token begins a
copy, while the paper waits for 3 to 5 (`suffix=3`), which is late for short texts. A wrong draft costs positions, not
forwards.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, Uniforms
from .text_history import NGramIndex, PerRow, chain, repeated


@register("copyspec", exact="greedy", checked="reference:reference.naive_lookup.Copying joint")
class CopySpec(Drafter):
    provides = frozenset({Trait.COPIES, Trait.DRAFTS_ONE_CHAIN, Trait.OBSERVES_TOKENS})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (10, 5), "suffix": (1, 3, 5)}

    k: Annotated[int, "tokens drafted"] = 10
    suffix: Annotated[int, "repeated tokens that begin a copy; the paper tries 1 to 10 and uses 3 and 5"] = 1

    def __post_init__(self) -> None:
        self.require("k", "suffix", least=1)

    def start(self, context: DecodeContext) -> PerRow[Copy]:
        return PerRow(Copy(self.suffix) for _ in range(len(context.text)))

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: PerRow[Copy]) -> Draft:
        text = context.text

        def guess(at: int, budget: int) -> np.ndarray:
            tokens = text.row(at)
            position = state.rows[at].position(tokens)
            return tokens[:0] if position is None else repeated(tokens, position, budget)

        return chain(text, self.k, remaining, guess)


class Copy:
    """The position that one row is being copied from."""

    def __init__(self, suffix: int) -> None:
        self.grams = NGramIndex((suffix,))
        self.at: int | None = None  # index of the token that is expected next

    def position(self, tokens: np.ndarray) -> int | None:
        """The index to copy from after `tokens` [L], which have grown since the last call; None if there is none."""
        text = self.grams.text
        fresh = tokens[len(text) :].tolist()
        self.grams.extend(fresh)
        for token in fresh:
            if self.at is not None:
                self.at = self.at + 1 if text[self.at] == token else None
        if self.at is None:
            self.at = self.grams.match()
        return self.at
