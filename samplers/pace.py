"""Which way to decode gains more tokens per second, with drafts or without: measured round by round.

A `Pace` knows both rates and says which way the next round goes. It first measures each way for a few rounds, then goes
the faster way, and tries the other one again now and then: seldom enough that the time lost in trials stays below
one percent, and less with each trial in a row that changes nothing. Rates fade, since acceptance and costs change along
a text. Plain rounds differ little: once their rate is known, only some of them are timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

ROUNDS = 4  # of a trial, and of the first measurement of each way
LOST = 0.005  # share of the time that trials may lose
_LEAST_LOST = 0.00125  # after trials in a row that changed nothing: each halves the share
_FEWEST, _HOPELESS = 2, 0.5  # rounds after which a trial ends if its rate is below this share of the other one
_UNTIMED = 7  # plain rounds between two that are timed
_REST = 32  # rounds between trials, at least
_OLD = 0.5  # what earlier rounds weigh when a trial begins
_KNOWN = 16  # rounds after which the rate of plain ones is known
_FADE = 0.95  # of the sums, at each round
_FEW = 4  # rounds after which their mean bounds others
_SLOW = 2.0  # times the mean that a round counts at most: longer ones were interrupted by other programs

Clock = Callable[[], float]


def clock_on(devices: Iterable[str]) -> Clock:
    """The clock for rounds on devices of these types: wall time, or on a CPU alone the time of the thread.

    The thread that decodes takes its share of every computation, and its own time does not count other programs.
    Windows counts it in steps of 16 ms.
    """
    return time.thread_time if set(devices) == {"cpu"} and sys.platform != "win32" else time.perf_counter


def size(rows: int) -> int:
    """Numbers of rows whose rounds cost about the same have one size: 1, 2 and 3, 4 to 7, 8 to 15 ..."""
    return rows.bit_length()


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


@dataclass
class Pace:
    """The rates of both ways for one number of rows."""

    ways: tuple[Costs, Costs] = field(default_factory=lambda: (Costs(), Costs()))  # without drafts, with drafts
    trial: int = 0  # rounds that remain of a trial of the slower way
    best: bool = False  # whether drafts gain more
    wait: float = 0.0  # seconds until the next trial
    lost: float = 0.0  # seconds lost in the trial so far
    rested: int = 0  # rounds since the last trial
    last: bool | None = None  # the way of the last round
    share: float = LOST  # of the time that trials may lose now

    def drafts(self) -> bool:
        """Whether the next round drafts."""
        if not self.trial and self.wait <= 0 and self.ways[self.best].rounds >= ROUNDS and self._rested:
            self.trial, self.lost = ROUNDS + 1, 0.0  # the first round of a way also catches up with the text
            self.ways[not self.best].fade(_OLD)
        return self.best != bool(self.trial)

    @property
    def _rested(self) -> bool:
        return self.rested >= _REST or not self.ways[not self.best].rounds

    @property
    def _hopeless(self) -> bool:
        """Whether a trial has shown early that its way is by far the slower one."""
        tried = self.ways[not self.best]
        return tried.rounds >= _FEWEST and tried.rate < _HOPELESS * self.ways[self.best].rate

    @property
    def untimed(self) -> int:
        """The number of rounds after this one that need no clock: they go the same way."""
        known = not self.best and not self.trial and self.wait > 0 and self.ways[False].rounds >= _KNOWN
        return _UNTIMED if known else 0

    def add(self, drafted: bool, tokens: int, seconds: float, rounds: int = 1) -> None:
        """Counts a round; it stands for so many `rounds` of its kind."""
        if drafted == self.last or self.last is None:
            self.ways[drafted].add(tokens, seconds)
        self.last = drafted
        trying = self.trial > 0
        if trying:
            self.trial = 0 if self._hopeless else self.trial - 1
            self.lost += seconds - tokens / self.ways[self.best].rate
        else:
            self.wait -= seconds * rounds
            self.rested += rounds
        if self.trial or not (self.ways[False].rounds and self.ways[True].rounds):
            return
        before, self.best = self.best, self.ways[True].rate > self.ways[False].rate
        if self.best != before:
            self.share = LOST
        if trying:
            self.wait, self.rested = max(self.lost, 0.0) / self.share, 0
            if self.best == before:
                self.share = max(self.share / 2, _LEAST_LOST)


_PACES: WeakKeyDictionary[Any, dict[Any, Pace]] = WeakKeyDictionary()  # by the network


class RoundTimer:
    """Chooses the way of each round of a request, times it, and remembers the rates for later requests."""

    def __init__(self, network: Any, clock: Clock, *key: object) -> None:
        """`network` remembers the rates, as long as it is loaded; `key`: what else they depend on."""
        self.clock = clock
        self.paces: dict[int, Pace] = _PACES.setdefault(network, {}).setdefault(key, {})  # by the size of the batch
        self.pace = Pace()
        self.rows = 0
        self.drafting = False
        self.started: float | None = None
        self.untimed = 0  # rounds that need no clock from here on
        self.passed = 0  # and those that had none

    def begin(self, rows: int) -> bool:
        """Starts a round of so many live rows. Returns whether it drafts."""
        if rows != self.rows:
            self.rows, self.untimed, self.passed = rows, 0, 0
            self.pace = self.paces.setdefault(size(rows), Pace())
        elif self.untimed:
            self.untimed -= 1
            self.passed += 1
            return self.drafting
        self.drafting, self.started = self.pace.drafts(), self.clock()
        return self.drafting

    def end(self, gained: np.ndarray) -> None:
        """Ends the round that was begun, which gained so many tokens in each row; the prompt's was not begun."""
        if self.started is not None:
            seconds, self.started = self.clock() - self.started, None
            self.pace.add(self.drafting, int(gained.sum()), seconds, 1 + self.passed)
            self.untimed, self.passed = self.pace.untimed, 0
