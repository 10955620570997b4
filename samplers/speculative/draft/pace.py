"""Which way to decode gains more tokens per second, with drafts or without: measured round by round.

A `Pace` knows both rates and says which way the next round goes. It first measures each way for a few rounds, then goes
the faster way, and tries the other one again now and then: seldom enough that the time lost in trials stays at about
one percent. Rates fade, since acceptance and costs change along a text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from pardec.models.model import LanguageModel

from .. import round_costs
from ..round_costs import Costs, kept, size

ROUNDS = 4  # of a trial, and of the first measurement of each way
LOST = 0.01  # share of the time that trials may lose
_REST = 32  # rounds between trials, at least
_OLD = 0.5  # what earlier rounds weigh when a trial begins


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

    def drafts(self) -> bool:
        """Whether the next round drafts."""
        if not self.trial and self.wait <= 0 and self.ways[self.best].rounds >= ROUNDS and self._rested:
            self.trial, self.lost = ROUNDS + 1, 0.0  # the first round of a way also catches up with the text
            self.ways[not self.best].fade(_OLD)
        return self.best != bool(self.trial)

    @property
    def _rested(self) -> bool:
        return self.rested >= _REST or not self.ways[not self.best].rounds

    def add(self, drafted: bool, tokens: int, seconds: float) -> None:
        """Counts a round."""
        if drafted == self.last or self.last is None:
            self.ways[drafted].add(tokens, seconds)
        self.last = drafted
        if self.trial:
            self.trial -= 1
            self.lost += seconds - tokens / self.ways[self.best].rate
            if not self.trial:
                self.wait, self.rested = max(self.lost, 0.0) / LOST, 0
        else:
            self.wait -= seconds
            self.rested += 1
        if not self.trial and all(each.rounds for each in self.ways):
            self.best = self.ways[True].rate > self.ways[False].rate


_PACES: WeakKeyDictionary[Any, dict[Any, Pace]] = WeakKeyDictionary()  # by the model's stack


class RoundTimer:
    """Chooses the way of each round of a request, times it, and remembers the rates for later requests."""

    def __init__(self, model: LanguageModel, *key: object) -> None:
        """`key`: what else the rates depend on."""
        self.paces, self.key = kept(_PACES, model), key
        self.pace = Pace()
        self.drafting = False
        self.started: float | None = None

    def begin(self, rows: int) -> bool:
        """Starts a round of so many live rows. Returns whether it drafts."""
        key = self.key, size(rows)
        if key not in self.paces:
            self.paces[key] = Pace()
        self.pace = self.paces[key]
        self.drafting, self.started = self.pace.drafts(), round_costs.clock()
        return self.drafting

    def end(self, tokens: int) -> None:
        """Ends the round that was begun, which gained so many tokens in all rows; the prompt's was not begun."""
        if self.started is not None:
            self.pace.add(self.drafting, tokens, round_costs.clock() - self.started)
            self.started = None
