"""Seconds of rounds with and without drafts, and what a request would have taken without any.

A round without a draft, of any sampler, tells what plain decoding takes with so many rows of this model. The costs of
these rounds are kept for later requests, as long as the model is loaded. On a CPU they are seconds of the thread that
decodes, which takes its share of every computation: there a round costs the same if other programs interrupt it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.models.stack import WrapperStack

from ..pace import Clock, Costs, clock_on, size
from .contracts import Draft, Drafter

_KNOWN = 8  # rounds after which a cost is known
_LENGTHS = 512  # tokens of text after which a round may cost something else


def clock_of(model: LanguageModel, drafter: Drafter) -> Clock:
    """The clock for rounds of this model with this drafter."""
    placed: list[torch.device] = getattr(stack_of(model), "devices", list)()  # of layers, on one device or several
    named = (each.device for each in (drafter, *drafter.held) if each.device is not None)
    return clock_on((model.device.type, *(device.type for device in placed), *named))


def stack_of(model: LanguageModel) -> Any:
    """The network of `model`, whatever conditions of a request are wrapped around it."""
    stack = model.decoder
    while isinstance(stack, WrapperStack):
        stack = stack.base
    return stack


_PLAIN: WeakKeyDictionary[Any, dict[Any, Costs]] = WeakKeyDictionary()  # of rounds without drafts, by the model's stack


class RoundCosts:
    """The seconds of a request's rounds after that of the prompt."""

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self.clock = clock_of(model, drafter)
        # By the sizes of batch and text.
        self.plain: dict[tuple[int, int], Costs] = _PLAIN.setdefault(stack_of(model), {})
        self.seconds = 0.0
        self.rounds = 0
        self.drafted = False
        self.steps = defaultdict[tuple[int, int], float](float)  # rounds of plain decoding for the same tokens

    def add(self, draft: Draft, gained: np.ndarray, seconds: float) -> None:
        """Counts a round."""
        rows, tokens = len(gained), int(gained.sum())
        key = size(rows), size(int(draft.base.max()) // _LENGTHS)
        if draft.width == 1 and not draft.forwards and draft.queries is None:
            self.plain.setdefault(key, Costs()).add(tokens, seconds)
        else:
            self.drafted = True
        self.seconds, self.rounds = self.seconds + seconds, self.rounds + 1
        self.steps[key] += tokens / rows

    @property
    def without_drafts(self) -> float | None:
        """The seconds of plain decoding for the same tokens; None where they are not known, or nothing was drafted."""
        known = (key in self.plain and self.plain[key].rounds >= _KNOWN for key in self.steps)
        if not self.drafted or self.rounds < _KNOWN or not all(known):
            return None
        each = (count * self.plain[key].seconds / self.plain[key].weight for key, count in self.steps.items())
        return float(sum(each))
