"""Keeps a small model's tokens up to the first one that the large model finds too unlikely.

Speculative Decoding with Big Little Decoder, https://arxiv.org/abs/2302.07863

    x accepted  iff  -log p(x) <= rollback;  next = what the large model says after the last accepted one

This is the rollback half of the method. The other half, handing over to the large model when the small one is unsure,
is the length controller `fallback`. At temperature 0 the test uses the softmax of the logits, and the next token is
their argmax.

The reported deviation is the sum of 1 - p(x) over the accepted tokens, p being what the target samples from: given the
draft, an accepted token is certain instead of having probability p(x). Averaged over drafts, the sum bounds the total
variation from the target's distribution.

Deviates from the paper: it also accepts trees, keeping the first sibling within the bound; above temperature 0 the
large model's token is sampled.
Exact: no. With rollback=0 only tokens of probability 1 are accepted, which is sequential decoding, but slower.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch

from pardec.models.errors import SpecError

from ...ops.confidence import argmax
from ...registry import register
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.tree_walk import descend, reached


@register("bild", checked="hand")
class BigLittle(Acceptance):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"rollback": (1.0, 2.0, 3.0, 5.0, 8.0)}

    rollback: Annotated[float, "greatest -log p of an accepted token, in nats; the paper tunes it from 1 to 10"] = 2.0

    def __post_init__(self) -> None:
        if not self.rollback >= 0:
            raise SpecError(f"bild: rollback must be at least 0 (nats), got {self.rollback}")

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        rows, above = (
            torch.arange(len(distributions.probs), device=distributions.probs.device)[:, None],
            draft.parent.clamp(min=0),
        )
        surprise = -distributions.logits.log_softmax(-1)[rows, above, draft.ids]  # [B, T]
        path, count = descend(draft, draft.tested & (surprise <= self.rollback))
        last = distributions.probs[rows[:, 0], path.gather(1, count[:, None])[:, 0]]
        following = argmax(last) if distributions.greedy else uniforms.draw(last, "next")
        on_path = torch.arange(path.shape[1], device=path.device) <= count[:, None]
        missing = (1 - distributions.probs[rows, above, draft.ids]).gather(1, path).masked_fill(~on_path, 0)
        missing[:, 0] = 0  # node 0 was committed before
        fits = (surprise <= self.rollback).float()
        return Verdict(path, count, following, reached(draft, path, count), fits, missing.cumsum(1)[:, -1])
