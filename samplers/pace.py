"""Decides per round whether drafting gains tokens per second, from measured rounds with drafts and without.

A `Pace` has the seconds and tokens of rounds of both kinds. A round with drafts may gain one token or ten, so that a
few of them tell little: drafting ends where even an optimistic estimate of its rate is below plain decoding,

    (mean of the tokens + 2 deviations of the mean) / seconds < tokens per second of rounds without,

or where it is slower and has lost, since it last gained, two percent of all the time so far (at least 6 plain rounds,
at most 10). It is tried again once the time that it lost is half a percent of the time since. Earlier rounds lose
weight, since acceptance and costs change along a text. Texts differ: a request begins with drafts, whatever they lost
on the last one, unless the optimistic estimate is too low or they have lost 24 plain rounds in the last thousand.
Plain rounds differ little: once their rate is known, only some of them are timed.

`RoundCosts` adds up the seconds of a request's rounds, and tells what plain decoding would have taken for its tokens.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.models.stack import WrapperStack

ROUNDS = 8  # plain rounds before the first draft
LOST = 0.005  # share of the time that trials may lose
_REST = 32  # plain rounds between trials, at least
_FEWEST = 2  # rounds with drafts after which drafting may end
_CHECK, _CHECKED = 128, 4  # after this many rounds with drafts, this many plain ones are timed again
_SPREAD = 40.0  # added to the sum of squared deviations of a row's tokens: a gain that was not met yet
_OPTIMISM = 2.0  # standard deviations of the mean that an optimistic estimate adds
_RISK = 0.02  # share of all seconds that a trial may lose before it has to pay
_LEAST, _MOST = 6.0, 10.0  # bounds of that loss, in plain rounds
_MEMORY = 64.0  # when a trial begins, earlier rounds with drafts count as this many at most
_KNOWN, _UNTIMED = 16, 7  # timed plain rounds after which their rate is known, and rounds between two timed ones then
_FADE = 0.985  # factor of the sums at each round
_SAVED = 0.999  # factor of the seconds that drafting has saved, at each round with drafts
_TRIED = 24.0  # plain rounds that drafts may have lost where a request begins with them
_FEW = 4  # rounds after which the mean bounds the seconds of a round: see `_SLOW`
_MEASURED = 8  # rounds after which `RoundCosts` knows a cost
_LENGTHS = 512  # tokens of text after which a round may cost something else
_SLOW = 2.0  # a round counts this many times the mean at most: other programs interrupted longer ones

Clock = Callable[[], float]


def clock_on(devices: Iterable[str]) -> Clock:
    """The clock for rounds on devices of these types: wall time, or on a CPU alone the time of the thread.

    The thread that decodes takes its share of every computation, and its own time does not count other programs.
    Windows counts it in steps of 16 ms.
    """
    return time.thread_time if set(devices) == {"cpu"} and sys.platform != "win32" else time.perf_counter


def clock_of(model: LanguageModel, *drafters: Any) -> Clock:
    """The clock for rounds of this model with these drafters."""
    placed: list[torch.device] = getattr(stack_of(model), "devices", list)()  # devices of layers, one or several
    named = (each.device for each in drafters if each.device is not None)  # as the spec writes them
    return clock_on((model.device.type, *(device.type for device in placed), *named))


def stack_of(model: LanguageModel) -> Any:
    """The network of `model`, whatever conditions of a request are wrapped around it."""
    stack = model.decoder
    while isinstance(stack, WrapperStack):
        stack = stack.base
    return stack


def size(rows: int) -> int:
    """The class of a number of rows; rounds within a class cost about the same: 1, 2 to 3, 4 to 7, 8 to 15 ..."""
    return rows.bit_length()


@dataclass
class Costs:
    """Tokens and seconds of rounds of one kind, with decay."""

    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0  # sum of the squares of tokens
    weight: float = 0.0  # rounds, with decay
    rounds: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts a round."""
        if self.rounds >= _FEW:
            seconds = min(seconds, _SLOW * self.each)
        self.fade(_FADE)
        self.tokens, self.seconds, self.weight = self.tokens + tokens, self.seconds + seconds, self.weight + 1
        self.squares += tokens * tokens
        self.rounds += 1

    def fade(self, factor: float) -> None:
        """Multiplies the weight of earlier rounds by `factor`."""
        self.tokens, self.seconds, self.weight = self.tokens * factor, self.seconds * factor, self.weight * factor
        self.squares *= factor

    @property
    def each(self) -> float:
        """Seconds of a round."""
        return self.seconds / self.weight

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-12)

    def upper_rate(self, z: float, spread: float) -> float:
        """Tokens per second, `z` standard deviations above the mean; `spread` adds to the sum of squared deviations."""
        around = max(self.squares - self.tokens**2 / self.weight, 0.0) + spread
        return (self.tokens + z * math.sqrt(around)) / max(self.seconds, 1e-12)


@dataclass
class Pace:
    """The rates with and without drafts for one number of rows."""

    rows: int = 1
    plain: Costs = field(default_factory=Costs)
    drafted: Costs = field(default_factory=Costs)
    best: bool = False  # whether rounds draft
    check: int = 0  # plain rounds that remain between drafts, to time them
    wait: float = 0.0  # seconds until the next trial
    lost: float = 0.0  # seconds lost in this trial, since it last had gained
    checked: float = 0.0  # seconds lost in these plain rounds between drafts
    rested: int = 0  # rounds since the last change
    seconds: float = 0.0  # sum over all rounds
    saved: float = 0.0  # seconds that rounds with drafts saved, less what they lost; those of earlier rounds fade
    last: bool | None = None  # whether the last round drafted

    def begin(self) -> None:
        """Lets a request, or a changed number of rows, begin with drafts if these have not lost too much before."""
        if self.best or self.plain.rounds < ROUNDS or self._is_hopeless:
            return
        if self.saved > -_TRIED * self.plain.each:
            self.wait, self.rested = 0.0, _REST

    def drafts(self) -> bool:
        """Whether the next round drafts."""
        if self.wait <= 0 and not self.check:
            if self.best and self.rested >= _CHECK:
                self.check, self.checked = _CHECKED + 1, 0.0  # the first one does not count: see `add`
            elif not self.best and self.plain.rounds >= ROUNDS and (self.rested >= _REST or not self.drafted.rounds):
                self.best, self.lost, self.rested = True, 0.0, 0
                if self.drafted.weight > _MEMORY:
                    self.drafted.fade(_MEMORY / self.drafted.weight)
        return self.best and not self.check

    @property
    def untimed(self) -> int:
        """The number of rounds after this one that need no clock: they are plain as well."""
        return _UNTIMED if not self.best and self.wait > 0 and self.plain.rounds >= _KNOWN else 0

    def add(self, drafted: bool, tokens: int, seconds: float, rounds: int = 1) -> None:
        """Counts a round; it stands for `rounds` rounds of its kind.

        The first round after a change does not count: it also catches up with the text.
        """
        if drafted == self.last or self.last is None:
            (self.drafted if drafted else self.plain).add(tokens, seconds)
        self.last = drafted
        self.seconds, self.rested = self.seconds + seconds * rounds, self.rested + rounds
        self.wait -= seconds * rounds
        if self.check:
            self.check -= 1
            self.checked += seconds - tokens / self.drafted.rate
            if not self.check:
                self.wait, self.rested = max(self.checked, 0.0) / LOST, 0
        elif self.best:
            lost = seconds - tokens / self.plain.rate
            self.lost, self.saved = max(self.lost + lost, 0.0), self.saved * _SAVED - lost
            if self._loses:
                self.best, self.wait, self.rested = False, max(self.lost, 0.0) / LOST, 0

    @property
    def _loses(self) -> bool:
        """Whether drafting has lost as much time as a trial may lose, or is hopeless; never in its first rounds."""
        risk = min(max(_RISK * self.seconds, _LEAST * self.plain.each), _MOST * self.plain.each)
        slower = self.drafted.rounds >= _FEWEST and self.drafted.rate < self.plain.rate
        return (slower and self.lost > risk) or self._is_hopeless

    @property
    def _is_hopeless(self) -> bool:
        """Whether even an optimistic estimate of drafting is below plain decoding."""
        known = self.drafted.rounds >= _FEWEST
        return known and self.drafted.upper_rate(_OPTIMISM, _SPREAD * self.rows) <= self.plain.rate


_PACES: WeakKeyDictionary[Any, dict[Any, dict[int, Pace]]] = WeakKeyDictionary()  # by network


class RoundTimer:
    """Decides for each round of a request whether it drafts, times it, and keeps the rates for later requests."""

    def __init__(self, network: Any, clock: Clock, *key: object) -> None:
        """Rates are kept per `network`, while it is loaded, and per `key`: the spec and other settings."""
        self.clock = clock
        self.paces: dict[int, Pace] = _PACES.setdefault(network, {}).setdefault(key, {})  # by the size of the batch
        self.pace = Pace()
        self.rows = 0
        self.drafting = False
        self.started: float | None = None
        self.untimed = 0  # rounds that need no clock from here on
        self.passed = 0  # rounds without a clock since the last timed one

    def begin(self, rows: int) -> bool:
        """Starts a round with `rows` live rows. Returns whether it drafts."""
        if rows != self.rows:
            self.rows, self.untimed, self.passed = rows, 0, 0
            self.pace = self.paces.setdefault(size(rows), Pace(rows))
            self.pace.begin()
        elif self.untimed:
            self.untimed -= 1
            self.passed += 1
            return self.drafting
        self.drafting, self.started = self.pace.drafts(), self.clock()
        return self.drafting

    def end(self, gained: np.ndarray) -> None:
        """Ends the round that `begin` started, in which rows gained `gained` [B] tokens; ignores the prompt's round."""
        if self.started is not None:
            seconds, self.started = self.clock() - self.started, None
            self.pace.add(self.drafting, int(gained.sum()), seconds, 1 + self.passed)
            self.untimed, self.passed = self.pace.untimed, 0


_PLAIN: WeakKeyDictionary[Any, dict[Any, Costs]] = WeakKeyDictionary()  # costs of rounds without drafts, by network


class RoundCosts:
    """The seconds of a request's rounds after the prompt's round.

    Rounds without a draft, of any sampler, tell what plain decoding takes; later requests of this model know it.
    """

    def __init__(self, network: Any, clock: Clock) -> None:
        self.clock = clock
        self.plain: dict[tuple[int, int], Costs] = _PLAIN.setdefault(network, {})  # by the sizes of batch and text
        self.seconds = 0.0
        self.rounds = 0
        self.drafted = False
        self.steps = defaultdict[tuple[int, int], float](float)  # rounds of plain decoding for the same tokens

    def add(self, drafted: bool, length: int, gained: np.ndarray, seconds: float) -> None:
        """Counts a round, drafted or plain, whose longest text had this `length`."""
        rows, tokens = len(gained), int(gained.sum())
        key = size(rows), size(length // _LENGTHS)
        if not drafted:
            self.plain.setdefault(key, Costs()).add(tokens, seconds)
        self.drafted |= drafted
        self.seconds, self.rounds = self.seconds + seconds, self.rounds + 1
        self.steps[key] += tokens / rows

    @property
    def without_drafts(self) -> float | None:
        """The seconds of plain decoding for the same tokens; None where they are not known, or nothing was drafted."""
        known = (key in self.plain and self.plain[key].rounds >= _MEASURED for key in self.steps)
        if not self.drafted or self.rounds < _MEASURED or not all(known):
            return None
        each = (count * self.plain[key].each for key, count in self.steps.items())
        return float(sum(each))
