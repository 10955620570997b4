"""A law: the distribution that some logits stand for, and drawing from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange
from torch import Tensor

from pardec.samplers.kernels.confidence import Confidence, confidence, greedy
from pardec.samplers.rng import gumbel


@dataclass(frozen=True)
class Law:
    """softmax(logits) at each position of the active block. Statistics are computed once, when first asked for.

    With `place`, only some positions have logits, and each of the block's says where its own stand; those without share
    another's, which means nothing. Statistics are then computed for the few and handed out aligned to the block.
    """

    rows: Tensor  # [B, W, V], or with `place` [R, V]
    place: Tensor | None = None  # [B, W] int64, row of `rows`

    @cached_property
    def logits(self) -> Tensor:
        """[B, W, V]."""
        return self.rows if self.place is None else self._aligned(self.rows)

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        """The argmax and its probability, [B, W]."""
        if "confidence" in vars(self):  # computed already
            return self.confidence.ids, self.confidence.probability
        ids, probability = greedy(self.rows)
        return self._aligned(ids), self._aligned(probability)

    @cached_property
    def confidence(self) -> Confidence:
        """argmax, top-1, top-2, log-sum-exp and entropy, each [B, W]."""
        return Confidence(*map(self._aligned, confidence(self.rows)))

    def probability(self, tokens: Tensor) -> Tensor:
        """The probability of `tokens` [B, W]."""
        ids, highest = self.greedy
        if tokens is ids:
            return highest
        chosen = self.logits.gather(-1, torch.stack((ids, tokens), -1))
        return (chosen[..., 1] - chosen[..., 0]).exp() * highest

    def draw(self, uniform: Tensor) -> Tensor:
        """One token [B, W] per row of `uniform` [B, W, V] in (0, 1): the Gumbel-max rule, in float64."""
        return (self.logits.double() + gumbel(uniform)).argmax(-1)

    def _aligned(self, found: Tensor) -> Tensor:
        return found if self.place is None else found[self.place]


def filtered(logits: Tensor, *, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """`logits` [B, W, V] over the temperature, then without what top-p and then top-k leave out (-inf).

    A temperature of 0 leaves the logits undivided: the argmax is the same and the filters still shape the law.
    """
    if temperature > 0 and temperature != 1:
        logits = logits / temperature
    if top_k is None and top_p is None:
        return logits
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    warpers = [TopPLogitsWarper(top_p)] if top_p is not None and top_p < 1 else []
    warpers += [TopKLogitsWarper(top_k)] if top_k is not None else []
    rows = rearrange(logits, "b w v -> (b w) v")
    for warper in warpers:
        rows = warper(None, rows)
    return rearrange(rows, "(b w) v -> b w v", b=len(logits))
