"""Feeds the previous step's predictions back as inputs, for models trained with self-conditioning.

DiffusionGemma, https://huggingface.co/google/diffusiongemma-26B-A4B-it; after Analog Bits,
https://arxiv.org/abs/2208.04202

    signal_i = softmax(l_i) E        l are the logits that the step before sampled from; nothing at a block's first step

The model itself says how the signal and the embeddings of the canvas come together.
Exact: no; such a model's published decoding has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Evidence, Inputs


@dataclass
class Signal:
    """The expected embeddings of the active block, [B, W, E]; None before the first forward."""

    expected: Tensor | None = None


@register("selfcondition", checked="reference:models.families.test_diffusion_gemma.published_generate")
class SelfCondition(Inputs):
    provides = frozenset({Trait.ADDS_TO_INPUTS, Trait.OBSERVES_CHANGED_LOGITS})
    requires: ClassVar[Reasons] = {
        Trait.MAY_WAIT: Why("{me} is for a canvas of random tokens", "write selfcondition+renoise"),
        Trait.RANDOM_CANVAS: Why(
            "{me} is for models trained with it, such as DiffusionGemma, and {other} is not",
            "use smoothing, which adds a mixture of embeddings to the masks of any model",
        ),
    }

    def start(self, canvas: Canvas) -> Signal:
        return Signal()

    def soft(self, canvas: Canvas, state: Signal) -> Tensor | None:
        if state.expected is None:
            return None
        return state.expected.masked_fill(upload(canvas.block_started, state.expected.device)[:, None, None], 0)

    def observe(self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Signal) -> None:
        state.expected = evidence.distribution.expected(embed).masked_fill(~evidence.predicted[..., None], 0)
