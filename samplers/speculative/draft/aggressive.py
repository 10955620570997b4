"""Drafts the source text itself, for outputs that mostly repeat it: corrections, rewritings, extractions.

Instantaneous Grammatical Error Correction with Shallow Aggressive Decoding, https://arxiv.org/abs/2106.04970
Lossless Acceleration for Seq2seq Generation with Aggressive Decoding, https://arxiv.org/abs/2205.10350

    output so far matches source[: s]      =>  draft = source[s : s + k]
    output deviates from the source: continue after its shortest suffix that occurs exactly once in source[s:]
    until there is one:              draft = source[s + d : s + d + k], d tokens being new since the deviation

The source is the row's prompt, or the text given as `source`. The output is expected to begin like the source; if it
does not, the second rule finds the position; until then nothing is drafted.

Deviates from the papers: the third rule assumes that tokens were replaced one by one, where theirs draft nothing
(`reference=true`): a wrong guess costs positions, and a right one saves the forwards that the second rule waits for. A
deviation ends when `agree` tokens in a row equal the guesses; the second rule applies, to the tokens since the
deviation alone, once the second or a later token differs from its guess. At most k tokens
are drafted, not the whole rest of the source, and a suffix has at most `max_ngram` tokens.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, Uniforms
from .text_history import PerRow, chain


@register("aggressive", exact="greedy", checked="reference:reference.naive_lookup.aggressive joint")
class Aggressive(Drafter):
    provides = frozenset({Trait.COPIES, Trait.DRAFTS_ONE_CHAIN})

    k: Annotated[int, "tokens drafted"] = 32
    max_ngram: Annotated[int, "longest suffix of the output that is searched in the source"] = 8
    source: Annotated[str | None, "the text that the output repeats; none: each row's prompt"] = None
    agree: Annotated[int, "equal tokens in a row that end a deviation; until then each counts as a replacement"] = 1
    reference: Annotated[bool, "as published: nothing is drafted until a suffix occurs exactly once"] = False

    def __post_init__(self) -> None:
        self.require("k", "max_ngram", "agree", least=1)

    def start(self, context: DecodeContext) -> PerRow[Alignment]:
        text = context.text
        source = None if self.source is None else self._read(self.source, context.model)
        return PerRow(
            Alignment(
                text.row(at).copy() if source is None else source, self.max_ngram, 0 if self.reference else self.agree
            )
            for at in range(len(text))
        )

    def _read(self, source: str, model: LanguageModel) -> np.ndarray:
        if model.tokenizer is None:
            raise SpecError(
                f"aggressive: source is text, and {model.name} has no tokenizer", hint="leave source out for the prompt"
            )
        return np.array(model.tokenizer.encode(source, add_special_tokens=False), dtype=np.int64)

    def propose(
        self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: PerRow[Alignment]
    ) -> Draft:
        text = context.text

        def guess(at: int, budget: int) -> np.ndarray:
            return state.rows[at].ahead(text.row(at)[text.prompt[at] :])[:budget]

        return chain(text, self.k, remaining, guess)


class Alignment:
    """The alignment of one row's output with its source."""

    def __init__(self, source: np.ndarray, most: int, agree: int = 0) -> None:
        """`agree`: 0 if nothing is guessed after a deviation."""
        self.source, self.most = source, most  # [S]; the length of the longest suffix searched
        self.agree = agree
        self.at = 0  # index of the source token expected next, or where the output deviated
        self.follows = True
        self.consumed = 0  # output tokens processed
        self.replaced = 0  # output tokens since it deviated
        self.equal = 0  # how many of these, from the last one back, equal the source if each replaces one token

    def ahead(self, output: np.ndarray) -> np.ndarray:
        """The rest of the source after `output` [N], which has grown since the last call; empty if it deviates."""
        for end in range(self.consumed + 1, len(output) + 1):
            self.follows = self.follows and self.at < len(self.source) and self.source[self.at] == output[end - 1]
            if self.follows:
                self.at += 1
                continue
            guess = self.at + self.replaced
            self.replaced += 1
            self.equal = self.equal + 1 if guess < len(self.source) and self.source[guess] == output[end - 1] else 0
            if not self._guesses:
                self._find(output[:end])
            elif self.equal >= self.agree:
                self.at, self.follows = guess + 1, True
            elif (
                not self.equal and self.replaced > 1
            ):  # a single token, or one before the deviation, may agree by chance
                self._find(output[end - self.replaced : end])
            if self.follows:
                self.replaced = self.equal = 0
        self.consumed = len(output)
        if self.follows:
            return self.source[self.at :]
        return self.source[self.at + self.replaced :] if self._guesses else self.source[:0]

    @property
    def _guesses(self) -> bool:
        """Whether a deviation counts as a replacement; not if the output contains nothing of the source yet."""
        return self.agree > 0 and self.at > 0

    def _find(self, output: np.ndarray) -> None:
        """Continues after the shortest suffix of the output that occurs once in the rest of the source."""
        rest = self.source[self.at :]
        for size in range(1, min(self.most, len(output), len(rest)) + 1):
            windows = np.lib.stride_tricks.sliding_window_view(rest, size)
            starts = np.flatnonzero((windows == output[-size:]).all(1))
            if len(starts) == 1:
                self.at, self.follows = self.at + int(starts[0]) + size, True
            if len(starts) < 2:
                return
