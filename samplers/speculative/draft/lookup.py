"""Drafts what followed the text's last few tokens where they stood before.

Prompt Lookup Decoding, https://github.com/apoorvumang/prompt-lookup-decoding
Inference with Reference, https://arxiv.org/abs/2304.04487

    for m = max_ngram .. 1:  the last m tokens stood before at s  =>  draft = text[s + m : s + m + k]

`context=grid` is for pictures: the next cell is likened to earlier ones with the same cells to the left and above, and
the draft is what stands from there on, row by row. A missing neighbour is like another missing one.

Deviates from the authors' code: `prefer` says which of several places is taken, where both public versions take the
first. A place so near the end that fewer than k tokens follow is taken too, and the draft goes on as a period of the
text does; `prefer=first` restores the published choice, which ends with the text. An index of runs grows with the
text, where the published code searches all of it in each round.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, Outcome, Uniforms
from ._grid import columns
from ._history import Cells, Grams, PerRow, Reach, chain, repeated

Index = Grams | Reach | Cells


@register("lookup", stage="draft", paper="arXiv:2304.04487", exact="greedy", checked="reference joint")
@dataclass(frozen=True)
class Lookup(Drafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (10, 5), "max_ngram": (3, 2)}

    k: Annotated[int, "tokens drafted"] = 10
    max_ngram: Annotated[int, "longest match looked for; without meaning for prefer=longest"] = 3
    prefer: Annotated[Literal["first", "last", "longest"], "longest: whose match reaches back furthest"] = "last"
    context: Annotated[
        Literal["line", "grid"], "what has to match: the last tokens, or the cells to the left and above"
    ] = "line"

    def __post_init__(self) -> None:
        self.require("k", "max_ngram", least=1)

        if self.context == "grid" and self.prefer == "longest":
            raise SpecError(
                "lookup: two neighbours either match or do not, so that with context=grid no match is the longest",
                hint="prefer=first or prefer=last",
            )

    def width(self, model: LanguageModel) -> int:
        self._columns(model)
        return self.k + 1

    def start(self, context: DecodeContext) -> PerRow[Index]:
        wide = self._columns(context.model)
        return PerRow(self.index(int(prompt), wide) for prompt in context.text.prompt)

    def index(self, prompt: int = 0, columns: int = 0) -> Index:
        """What is remembered of one row; of pictures, whose cells begin behind the prompt."""
        if columns:
            return Cells(prompt, columns, first=self.prefer == "first")
        if self.prefer == "longest":
            return Reach()
        return Grams(range(1, self.max_ngram + 1), first=self.prefer == "first")

    def _columns(self, model: LanguageModel) -> int:
        """Of a picture; 0 where the text is a line."""
        return columns(model, "lookup: context=grid", "leave context out") if self.context == "grid" else 0

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: PerRow[Index]) -> Draft:
        text = context.text
        return chain(text, self.k, room, lambda at, budget: self.found(text.row(at), state.rows[at], budget))

    def found(self, tokens: np.ndarray, index: Index, count: int) -> np.ndarray:
        """What followed the longest suffix of `tokens` [L], or the neighbours, that stood before; up to `count` tokens.

        `index` is brought up to date; it has seen no other text.
        """
        known = index.length if isinstance(index, Reach) else len(index.text)
        index.grow(tokens[known:].tolist())
        place = index.behind()
        if place is None:
            return tokens[:0]
        return tokens[place : place + count] if self.prefer == "first" else repeated(tokens, place, count)

    def observe(self, outcome: Outcome, context: DecodeContext, state: PerRow[Index]) -> None:
        return
