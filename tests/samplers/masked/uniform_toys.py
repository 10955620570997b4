"""Toys trained on uniform noise, without a mask token, and their decoding by plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from tests.samplers.toys import toy

VOCAB = 7


def uniform_toy(vocab: int = VOCAB, **options: Any) -> LanguageModel:
    """A toy whose open positions hold random tokens; the id that marks them is the one after the last."""
    model = toy(vocab=vocab, **{"sharp": 1.0, **options})
    return replace(model, decoding_config=replace(model.decoding_config, mask_id=vocab, uniform=True))


def predictions(model: LanguageModel, tokens: list[int]) -> np.ndarray:
    """Logits [L, V] of a forward over a row."""
    logits: np.ndarray = model.forward(Plan.full(torch.tensor([tokens]), model.visible())).logits()[0].double().numpy()
    return logits
