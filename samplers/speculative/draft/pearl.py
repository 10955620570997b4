"""Drafts while the target verifies: the draft is used if the drafter predicted the token before it.

Parallel Speculative Decoding with Adaptive Draft Length, https://arxiv.org/abs/2408.11850

    pre-verify    the drafter writes x_1 .. x_k while the target runs on the text alone, which tests x_1
    post-verify   it writes x_(k+1) .. x_(2k) while the target runs on x_1 .. x_k, which tests x_2 .. x_(k+1)
    a token that is rejected drops all drafted ones after it, and leads to pre-verify; otherwise post-verify follows

So a round takes max(k forwards of the drafter, 1 of the target), and a draft continues until one of its tokens is
wrong. `pardec simulate --schedule pearl` shows that time; here both models run in one process, one after the other. A
token drafted meanwhile counts only if the one before it turns out right, and is computed when that is known.

Deviates from the paper: above temperature 0, x_1 is accepted if it is the token that the target samples, not with
probability p / q, so that a draft is begun less often. Rows of a batch are in different states.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, RoundResult, Uniforms
from ..draft_model import DraftModelState
from .model import Model


class AheadState(DraftModelState):
    """A drafting model that has predicted the token after each row's last draft."""

    per_row = ("prediction",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prediction = np.full_like(self.context.text.length, -1)  # [B] predicted; -1: the draft was cut before it
        self.predicted: Tensor | None = None  # the same of this round, until it is over

    def ahead(self, k: int, remaining: np.ndarray, uniforms: Uniforms) -> Draft:
        """k - 1 tokens if a row's last token is the prediction, else none; one more token is the next prediction."""
        text = self.context.text
        right = text.host[np.arange(len(text)), text.length - 1] == self.prediction
        draft = self.draft(k, np.where(right, remaining, np.minimum(remaining, 1)), uniforms)
        last = upload(draft.sizes - 1, draft.tokens.device)[:, None]
        self.predicted = torch.where(last > 0, draft.tokens.gather(1, last), -1)[:, 0]
        sizes = np.maximum(draft.sizes - 1, 1)
        width = int(sizes.max())
        return replace(
            draft,
            tokens=draft.tokens[:, :width],
            sizes=sizes,
            q=None if draft.q is None else draft.q[:, :width],
            is_point_mass=None if draft.is_point_mass is None else draft.is_point_mass[:, :width],
        )

    def observe(self, outcome: RoundResult) -> None:
        super().observe(outcome)
        if self.predicted is not None:  # not in the prompt's round
            self.prediction = outcome.read("predicted", lambda: self.to_observe(outcome))["predicted"]

    def to_observe(self, outcome: RoundResult) -> Mapping[str, Tensor]:
        own = {} if self.predicted is None else {"predicted": self.predicted}
        return {**super().to_observe(outcome), **own}


@register("pearl", exact="greedy", checked="reference:reference.naive_pearl.pearl joint")
class Pearl(Model):
    state: ClassVar[type[DraftModelState]] = AheadState

    @property
    def provides(self) -> frozenset[Trait]:
        return (super().provides | {Trait.OBSERVES_TOKENS}) - {Trait.TAKES_LENGTH}

    @property
    def conflicts(self) -> Reasons:
        return {Trait.DRAFTS_TREES: Why("{me} drafts chains, and {other!r} is a tree", "leave {other!r} out")}

    def width(self, model: LanguageModel) -> int:
        return self.k  # the first token of a round was tested in the round before

    def propose(
        self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: DraftModelState
    ) -> Draft:
        assert isinstance(state, AheadState)
        return state.ahead(self.k, remaining, uniforms)
