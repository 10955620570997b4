"""Drafts what followed the text's last few tokens where they stood before.

Prompt Lookup Decoding, https://github.com/apoorvumang/prompt-lookup-decoding
Inference with Reference, https://arxiv.org/abs/2304.04487

    for m = max_ngram .. 1:  the last m tokens stood before at s  =>  draft = text[s + m : s + m + k]

Deviates from the authors' code: `prefer` says which of several places is taken, where both public versions take the
first; a continuation shorter than k is taken too. `prefer=first` restores the published choice.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from pardec.models.errors import SpecError
from pardec.models.language_model import LanguageModel
from pardec.samplers.registry import register
from pardec.samplers.verifying import Chances, Draft, Outcome, Scene


@register("lookup", stage="draft", paper="arXiv:2304.04487", exact="greedy")
@dataclass(frozen=True)
class Lookup:
    k: int = 10  # tokens drafted
    max_ngram: int = 3  # longest match looked for
    prefer: Literal["first", "last", "longest"] = "last"  # longest: whose match reaches back furthest

    def __post_init__(self) -> None:
        for name in ("k", "max_ngram"):
            if getattr(self, name) < 1:
                raise SpecError(f"lookup: {name} must be at least 1, got {getattr(self, name)}")

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    def propose(self, scene: Scene, room: np.ndarray, chances: Chances, state: None) -> Draft:
        text = scene.text
        drafted = np.zeros((len(text), self.k), dtype=np.int64)
        counts = np.zeros_like(text.length)
        for at in range(len(text)):
            found = self.found(text.row(at))[: int(room[at])]
            drafted[at, : len(found)], counts[at] = found, len(found)
        return Draft.chain(text, torch.from_numpy(drafted).to(text.device), counts)

    def found(self, tokens: np.ndarray) -> np.ndarray:
        """What followed the longest suffix of `tokens` [L] that stood before; empty if none did."""
        for size in range(min(self.max_ngram, len(tokens) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)
            starts = np.flatnonzero((windows == tokens[-size:]).all(1))
            if len(starts):
                start = self._chosen(tokens, starts, size)
                return tokens[start + size : start + size + self.k]
        return tokens[:0]

    def _chosen(self, tokens: np.ndarray, starts: np.ndarray, size: int) -> int:
        if self.prefer == "longest":
            return int(max(starts, key=lambda start: (_back(tokens, start, size), start)))
        return int(starts[0] if self.prefer == "first" else starts[-1])

    def observe(self, outcome: Outcome, scene: Scene, state: None) -> None:
        return


def _back(tokens: np.ndarray, start: int, size: int) -> int:
    """How many tokens before the match at `start` agree with those before the suffix."""
    before, ending = tokens[:start][::-1], tokens[: len(tokens) - size][::-1]
    same = before == ending[: len(before)]
    return int(same.argmin()) if not same.all() else len(before)
