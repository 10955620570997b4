"""Seconds of rounds with and without drafts, and what a request would have taken without any.

A round without a draft, of any sampler, tells what plain decoding takes with so many rows of this model. The costs of
these rounds are kept for later requests, as long as the model is loaded. On a CPU they are seconds of the thread that
decodes, which takes its share of every computation: there a round costs the same if other programs interrupt it.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pardec.models.model import LanguageModel
from pardec.models.stack import WrapperStack

from .contracts import Draft, Drafter

_FADE = 0.95  # of the sums, at each round
_KNOWN = 8  # rounds after which a cost is known
_LENGTHS = 512  # tokens of text after which a round may cost something else
_FEW = 4  # rounds after which their mean bounds others
_SLOW = 2.0  # times the mean that a round counts at most: longer ones were interrupted by other programs

Clock = Callable[[], float]


@dataclass
class Costs:
    """Tokens and seconds of rounds of one kind, with decay."""

    tokens: float = 0.0
    seconds: float = 0.0
    weight: float = 0.0  # rounds, with decay
    rounds: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts a round."""
        if self.rounds >= _FEW:
            seconds = min(seconds, _SLOW * self.seconds / self.weight)
        self.fade(_FADE)
        self.tokens, self.seconds, self.weight = self.tokens + tokens, self.seconds + seconds, self.weight + 1
        self.rounds += 1

    def fade(self, factor: float) -> None:
        """Lets earlier rounds weigh less."""
        self.tokens, self.seconds, self.weight = self.tokens * factor, self.seconds * factor, self.weight * factor

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-12)


def clock_of(model: LanguageModel, drafter: Drafter) -> Clock:
    """The clock for rounds of this model: wall time, or the thread's own time where all computes on the CPU.

    Windows counts a thread's time in steps of 16 ms.
    """
    placed = getattr(_stack(model), "devices", list)()  # of layers, which may be on several devices
    devices = {model.device.type, *(device.type for device in placed)}
    elsewhere = any(each.device is not None for each in (drafter, *drafter.held))
    return time.perf_counter if devices != {"cpu"} or elsewhere or sys.platform == "win32" else time.thread_time


def kept(store: WeakKeyDictionary[Any, dict[Any, Any]], model: LanguageModel) -> dict[Any, Any]:
    """What `store` has for `model`, whatever conditions of a request are wrapped around it."""
    return store.setdefault(_stack(model), {})


def _stack(model: LanguageModel) -> Any:
    stack = model.decoder
    while isinstance(stack, WrapperStack):
        stack = stack.base
    return stack


def size(rows: int) -> int:
    """Numbers of rows whose rounds cost about the same have one size: 1, 2 and 3, 4 to 7, 8 to 15 ..."""
    return rows.bit_length()


_PLAIN: WeakKeyDictionary[Any, dict[Any, Costs]] = WeakKeyDictionary()  # of rounds without drafts, by the model's stack


class RoundCosts:
    """The seconds of a request's rounds after that of the prompt."""

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self.clock = clock_of(model, drafter)
        self.plain: dict[tuple[int, int], Costs] = kept(_PLAIN, model)  # by the sizes of batch and text
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
