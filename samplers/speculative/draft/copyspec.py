"""Copies on from where the text's last few tokens stood before, for as long as the copy is right.

CopySpec: Accelerating LLMs with Speculative Copy-and-Paste, https://arxiv.org/abs/2502.08923

    the last `suffix` tokens stood before, most recently at s  =>  draft = text[s + suffix : s + suffix + k]
    all drafted tokens accepted, and the token behind them is the copy's too  =>  the copy goes on from there

The whole text of the row is searched, a chat's earlier turns included: one entry of a hash table a token, one look-up a
round. `lookup` differs in taking shorter matches too, and in looking anew each round.

Deviates from the paper: a copy that reaches the text's end goes on as a period of the text does; and one token that
stood before begins a copy, where the paper's runs wait for 3 to 5 (`suffix=3`), with which the short texts that the
models of this package copy are half over. A wrong draft costs positions, not forwards.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from pardec.models.model import LanguageModel

from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, Outcome, Uniforms
from ._history import Grams, PerRow, chain, repeated


@register("copyspec", stage="draft", paper="arXiv:2502.08923", exact="greedy", checked="reference joint")
@dataclass(frozen=True)
class CopySpec(Drafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (10, 5), "suffix": (1, 3, 5)}

    k: Annotated[int, "tokens drafted"] = 10
    suffix: Annotated[
        int, "tokens that must stand before for a copy to begin; the paper tries 1 to 10 and uses 3 and 5"
    ] = 1

    def __post_init__(self) -> None:
        self.require("k", "suffix", least=1)

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    def start(self, context: DecodeContext) -> PerRow[Copy]:
        return PerRow(Copy(self.suffix) for _ in range(len(context.text)))

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: PerRow[Copy]) -> Draft:
        text = context.text

        def guess(at: int, budget: int) -> np.ndarray:
            tokens = text.row(at)
            place = state.rows[at].place(tokens)
            return tokens[:0] if place is None else repeated(tokens, place, budget)

        return chain(text, self.k, room, guess)

    def observe(self, outcome: Outcome, context: DecodeContext, state: PerRow[Copy]) -> None:
        return


class Copy:
    """Where one row is being copied from."""

    def __init__(self, suffix: int) -> None:
        self.grams = Grams((suffix,))
        self.at: int | None = None  # the place that the next token is expected to repeat

    def place(self, tokens: np.ndarray) -> int | None:
        """Where to copy from behind `tokens` [L], which have grown since the last call; None if nowhere."""
        text = self.grams.text
        fresh = tokens[len(text) :].tolist()
        self.grams.grow(fresh)
        for token in fresh:
            if self.at is not None:
                self.at = self.at + 1 if text[self.at] == token else None
        if self.at is None:
            self.at = self.grams.behind()
        return self.at
