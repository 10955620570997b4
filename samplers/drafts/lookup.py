"""Drafts what followed the text's last few tokens where they stood before.

Prompt Lookup Decoding, https://github.com/apoorvumang/prompt-lookup-decoding
Inference with Reference, https://arxiv.org/abs/2304.04487

    for m = max_ngram .. 1:  the last m tokens stood before at s  =>  draft = text[s + m : s + m + k]

Deviates from the authors' code: `prefer` says which of several places is taken, where both public versions take the
first. A place so near the end that fewer than k tokens follow is taken too, and the draft goes on as a period of the
text does; `prefer=first` restores the published choice, which ends with the text. An index of runs grows with the
text, where the published code searches all of it in each round.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from pardec.models.errors import SpecError
from pardec.models.language_model import LanguageModel
from pardec.samplers.drafts._history import Grams, PerRow, Reach, chain, repeated
from pardec.samplers.registry import register
from pardec.samplers.verifying import Chances, Draft, Outcome, Scene


@register("lookup", stage="draft", paper="arXiv:2304.04487", exact="greedy")
@dataclass(frozen=True)
class Lookup:
    tried: ClassVar[dict[str, tuple[object, ...]]] = {"k": (10, 5), "max_ngram": (3, 2)}  # by `pardec tune`

    k: int = 10  # tokens drafted
    max_ngram: int = 3  # longest match looked for; without meaning for prefer=longest
    prefer: Literal["first", "last", "longest"] = "last"  # longest: whose match reaches back furthest

    def __post_init__(self) -> None:
        for name in ("k", "max_ngram"):
            if getattr(self, name) < 1:
                raise SpecError(f"lookup: {name} must be at least 1, got {getattr(self, name)}")

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    def start(self, scene: Scene) -> PerRow[Grams | Reach]:
        return PerRow(self.index() for _ in range(len(scene.text)))

    def index(self) -> Grams | Reach:
        """What is remembered of one row."""
        if self.prefer == "longest":
            return Reach()
        return Grams(range(1, self.max_ngram + 1), first=self.prefer == "first")

    def propose(self, scene: Scene, room: np.ndarray, chances: Chances, state: PerRow[Grams | Reach]) -> Draft:
        text = scene.text
        return chain(text, self.k, room, lambda at, budget: self.found(text.row(at), state.rows[at], budget))

    def found(self, tokens: np.ndarray, index: Grams | Reach, count: int) -> np.ndarray:
        """What followed the longest suffix of `tokens` [L] that stood before, up to `count` tokens.

        `index` is brought up to date; it has seen no other text.
        """
        known = index.length if isinstance(index, Reach) else len(index.text)
        for token in tokens[known:].tolist():
            index.grow(token)
        place = index.behind()
        if place is None:
            return tokens[:0]
        return tokens[place : place + count] if self.prefer == "first" else repeated(tokens, place, count)

    def observe(self, outcome: Outcome, scene: Scene, state: PerRow[Grams | Reach]) -> None:
        return
