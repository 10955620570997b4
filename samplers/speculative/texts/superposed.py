"""Writes k drafts at one forward per token, which reads the sum of their last tokens; n-grams separate the drafts.

Superposed Decoding: Multiple Generations from a Single Autoregressive Inference Pass, https://arxiv.org/abs/2405.18400

    input       sum over drafts i of gamma_i * E(x_i),  gamma = the drafts' scores, exponentiated and normalized
    candidates  every draft with each of the likeliest `tokens` v of that forward, p_temperature(v) normalized over them
    score       of the draft + (1 - alpha) * log p(v) + alpha * log g(v | draft)
    kept        the k best of them all

g interpolates relative frequencies after one to five tokens (2- to 6-grams) of a corpus; `weights` are theirs. Only the
K/V of the superposed inputs exist: one row, whatever k. The first forward reads the prompt, and its k best
tokens begin the drafts. A draft that ends is set apart; the pass ends with the length, or when k drafts have ended and
no other can score better. Texts are in the order of their scores, those that have ended before those that have not.

Deviates from the authors' code: a token that g does not support costs `penalty` in place of alpha * log g also where g
supports another token of that draft, which there rules it out, so that there are always k drafts; a draft ends only
with one of the k best candidates, as in beam search, where the code sets apart those of the 2k best; and without
`corpus` n-grams are counted in the prompt. With k=1 nothing has to be told apart, and g is left out: that is greedy
decoding.
Exact: no, except with k=1, where it is greedy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError

from ...registry import register
from ...request import Request
from ...traits import Reasons, Trait, Why
from ..contracts import Texts


def check(name: str, k: int, request: Request) -> None:
    """Raises SpecError for more texts of a prompt than the `k` drafts."""
    if (most := max(request.samples, default=0) + 1) > k:
        raise SpecError(
            f"{name}:k={k} writes {k} texts per prompt and {most} are requested",
            hint=f"{name}:k={most} writes as many",
        )


class Ngrams:
    """Counts of the tokens after 1, 2, ... tokens, and their relative frequencies, interpolated.

    >>> Ngrams([5, 6, 5, 6, 5, 7], (0.25, 0.75)).probabilities([6, 5], [6, 7, 8]).tolist()
    [0.5416666666666666, 0.4583333333333333, 0.0]
    """

    def __init__(self, corpus: Sequence[int], weights: Sequence[float]) -> None:
        """`weights[n - 1]`: the weight of contexts of n tokens."""
        self.weights = tuple(weights)
        self.counts: list[dict[tuple[int, ...], Counter[int]]] = [defaultdict(Counter) for _ in self.weights]
        for size, behind in enumerate(self.counts, 1):
            for end in range(size, len(corpus)):
                behind[tuple(corpus[end - size : end])][corpus[end]] += 1

    def probabilities(self, text: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """[T] float64: how likely each of `tokens` follows `text`; a context that the corpus lacks adds 0."""
        total = np.zeros(len(tokens))
        for size, (weight, behind) in enumerate(zip(self.weights, self.counts, strict=True), 1):
            following = behind.get(tuple(text[-size:])) if size <= len(text) else None
            if following:
                total += weight * np.array([following[token] for token in tokens]) / following.total()
        return total


@register("superposed", checked="reference:samplers.speculative.test_superposed.naive")
class Superposed(Texts):
    k: Annotated[int, "drafts decoded at once, which bounds the texts per prompt"] = 3
    tokens: Annotated[int | None, "candidate tokens per forward; none: 3 * k, as published"] = None
    temperature: Annotated[float, "temperature of the model's distribution in the scores; published: 0.06 to 0.12"] = (
        0.06
    )
    alpha: Annotated[float, "weight of the n-grams in the scores"] = 0.54
    weights: Annotated[str, "weights of 2-grams, 3-grams, ..."] = "0.01-0.04-0.15-0.18-0.12"
    penalty: Annotated[float, "penalty of a token that no n-gram supports, in nats"] = 200.0
    corpus: Annotated[str | None, "a text file whose n-grams are counted; none: those of the prompt"] = None

    def __post_init__(self) -> None:
        self.require("k", least=1)
        self.require("tokens", least=self.k, hint=f"the first forward gives k={self.k} drafts a token each")
        self.require("alpha", least=0, most=1)
        self.require("penalty", least=0)
        if not self.temperature > 0:
            raise SpecError(f"superposed: temperature must be above 0, got {self.temperature}")
        if not self.by_size or not all(weight >= 0 for weight in self.by_size):
            raise SpecError(f"superposed: weights must be at least 0, got {self.weights!r}")

    @property
    def by_size(self) -> tuple[float, ...]:
        """The weights of contexts of 1, 2, ... tokens."""
        try:
            return tuple(float(value) for value in self.weights.split("-"))
        except ValueError:
            raise SpecError(
                f"superposed: weights must be values joined by '-', got {self.weights!r}", hint="weights=0.01-0.04-0.15"
            ) from None

    @property
    def exact(self) -> str:
        return "greedy" if self.k == 1 else "relaxed"

    @property
    def needed_corpus(self) -> str | None:
        return self.corpus if self.k > 1 else None

    @property
    def conflicts(self) -> Reasons:
        sampling = Why(
            "{me} writes the k best drafts, and {kind} is for sampling",
            "leave {kind} out; superposed:temperature= is that of the scores",
        )
        no = Why(
            "{me} does not support {kind}: one forward serves all drafts", "leave {kind} out"
        )  # they would tell drafts apart
        each = dict.fromkeys((trait for trait in Trait if trait.by == "request"), no)
        return each | {Trait.TEMPERATURE: sampling}

    def admit(self, request: Request, sampler: Any) -> None:
        check("superposed", self.k, request)

    def begin(self, prompts: Sequence[Sequence[int]], request: Request) -> list[Ngrams | None]:
        if self.k == 1:
            return [None] * len(prompts)
        if request.corpus is not None:
            return [Ngrams(request.corpus, self.by_size)] * len(prompts)
        return [Ngrams(prompt, self.by_size) for prompt in prompts]

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (logits / self.temperature).sort(dim=-1, descending=True, stable=True)
        count = self.tokens or 3 * self.k
        return scaled.indices[..., :count], scaled.values[..., :count].log_softmax(-1)

    def scores(
        self, texts: Sequence[Sequence[int]], tokens: np.ndarray, logprobs: np.ndarray, state: Ngrams | None
    ) -> np.ndarray:
        if state is None:
            return logprobs[None].repeat(len(texts), 0)
        support = np.stack([state.probabilities(text, tokens.tolist()) for text in texts])
        logs = np.log(support, out=np.zeros_like(support), where=support > 0)
        result: np.ndarray = (1 - self.alpha) * logprobs + np.where(support > 0, self.alpha * logs, -self.penalty)
        return result

    def mixture(self, scores: np.ndarray) -> np.ndarray:
        shares = np.exp(scores - scores.max())
        result: np.ndarray = shares / shares.sum()
        return result
