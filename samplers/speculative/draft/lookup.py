"""Drafts what followed an earlier occurrence of the text's last tokens.

Prompt Lookup Decoding, https://github.com/apoorvumang/prompt-lookup-decoding
Inference with Reference, https://arxiv.org/abs/2304.04487

    for m = max_ngram .. 1:  the last m tokens occurred before at s  =>  draft = text[s + m : s + m + k]

`context=grid` is for images: the draft is copied, in raster order, from an earlier position with the same image tokens
to the left and above. Missing neighbours count as equal.

Deviates from the authors' code: `prefer` chooses among several occurrences, while both public versions take the first.
If fewer than k tokens follow, the draft continues periodically; `prefer=first` restores the published choice, which
ends with the text. An index of n-grams grows with the text; the published code searches the whole text each round.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, Uniforms
from .image_grid import columns
from .text_history import GridIndex, NGramIndex, PerRow, SuffixIndex, chain, repeated

Index = NGramIndex | SuffixIndex | GridIndex


@register("lookup", exact="greedy", checked="reference:reference.naive_lookup.lookup joint")
class Lookup(Drafter):
    provides = frozenset({Trait.COPIES, Trait.DRAFTS_ONE_CHAIN, Trait.OBSERVES_TOKENS})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (10, 5), "max_ngram": (3, 2)}

    k: Annotated[int, "tokens drafted"] = 10
    max_ngram: Annotated[int, "longest match that is searched; not used with prefer=longest"] = 3
    prefer: Annotated[
        Literal["first", "last", "longest"],
        "occurrence that is copied: the first, the last, or the one with the longest match",
    ] = "last"
    context: Annotated[
        Literal["line", "grid"], "what has to match: the last tokens, or the image tokens to the left and above"
    ] = "line"

    def __post_init__(self) -> None:
        self.require("k", "max_ngram", least=1)

        if self.context == "grid" and self.prefer == "longest":
            raise SpecError(
                "lookup: prefer=longest does not work with context=grid, where all matches are equally long",
                hint="write prefer=first or prefer=last",
            )

    def width(self, model: LanguageModel) -> int:
        self._columns(model)
        return self.k + 1

    def start(self, context: DecodeContext) -> PerRow[Index]:
        wide = self._columns(context.model)
        return PerRow(self.index(int(prompt), wide) for prompt in context.text.prompt)

    def index(self, prompt: int = 0, columns: int = 0) -> Index:
        """An empty index for one row; `columns`: the width of an image after `prompt` tokens, 0 for text."""
        if columns:
            return GridIndex(prompt, columns, first=self.prefer == "first")
        if self.prefer == "longest":
            return SuffixIndex()
        return NGramIndex(range(1, self.max_ngram + 1), first=self.prefer == "first")

    def _columns(self, model: LanguageModel) -> int:
        """The columns of an image; 0 for text."""
        return columns(model, "lookup: context=grid", "leave context out") if self.context == "grid" else 0

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: PerRow[Index]) -> Draft:
        text = context.text
        return chain(text, self.k, remaining, lambda at, budget: self.guess(text.row(at), state.rows[at], budget))

    def guess(self, tokens: np.ndarray, index: Index, count: int) -> np.ndarray:
        """Up to `count` tokens that followed the longest matching suffix of `tokens` [L], or the matching neighbours.

        `index` is extended to `tokens`; it must have been used for this text only.
        """
        known = index.length if isinstance(index, SuffixIndex) else len(index.text)
        index.extend(tokens[known:].tolist())
        start_at = index.match()
        if start_at is None:
            return tokens[:0]
        return tokens[start_at : start_at + count] if self.prefer == "first" else repeated(tokens, start_at, count)
