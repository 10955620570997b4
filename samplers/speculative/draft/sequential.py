"""Decodes one token per forward, in order: the baseline of every drafter.

Attention Is All You Need, https://arxiv.org/abs/1706.03762 (autoregressive decoding)

    draft = nothing; the forward over the last token yields the next one

Exact: greedy and distribution, by definition.
"""

from __future__ import annotations

import numpy as np

from pardec.models.model import LanguageModel

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, Uniforms


@register("sequential", exact="greedy", checked="golden/llamagen reference:samplers.ar_toys.plain_greedy")
class Sequential(Drafter):
    provides = frozenset({Trait.OBSERVES_TOKENS})

    def width(self, model: LanguageModel) -> int:
        return 1

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: None) -> Draft:
        return Draft.none(context.text)
