"""What every task shares: problems drawn by seed, a split that no seed can cross, an exact score."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar

SPLITS = ("heldout", "train")
LIMIT = 100_000  # most problems one call hands out
_PATIENCE = 20_000  # draws in a row without a new problem before the split counts as exhausted


@dataclass(frozen=True)
class Problem:
    """One prompt and the answer that scores 1.0; `id` is a function of the prompt alone."""

    id: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Draw:
    """One draw of a generator. `key` names template and operands: it decides the split."""

    key: str
    prompt: str
    answer: str


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def nearest(value: str, known: tuple[str, ...]) -> str:
    """`" (did you mean 'x'?)"` where a known name is close to value, else nothing."""
    close = get_close_matches(value, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


class Task(ABC):
    """A seeded generator of problems with exact scores.

    `words` are the words its texts write after a space, `bare_words` those directly after a quote.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    words: ClassVar[frozenset[str]]
    bare_words: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def draw(self, rng: random.Random) -> Draw:
        """One problem of either split."""

    @abstractmethod
    def score(self, problem: Problem, text: str) -> float:
        """How right text is as an answer to problem, in [0, 1]; exact is 1.0."""

    def split_of(self, key: str) -> str:
        """The one split that template and operands belong to; about a tenth is held out."""
        return "heldout" if _digest(f"{self.name}|{key}") % 10 == 0 else "train"

    def sample(self, rng: random.Random, split: str = "train") -> Problem:
        """One problem of the split; advances rng."""
        while True:
            drawn = self.draw(rng)
            if self.split_of(drawn.key) == split:
                return self._problem(drawn)

    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        """`n` distinct problems; the first ones stay the same when n grows.

        Raises ValueError for an unknown split and for more problems than there are.

        >>> from pardec.tasks import task
        >>> [p.answer for p in task("lists").problems(n=1)] == [task("lists").problems(n=3)[0].answer]
        True
        """
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}{nearest(str(split), SPLITS)}\nsplits: {', '.join(SPLITS)}")
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= LIMIT:
            raise ValueError(f"{self.name}: n must lie in 1..{LIMIT}, got {n}\nask for fewer problems")
        rng = random.Random(f"{self.name}/{split}/{seed}")
        found: dict[str, Problem] = {}
        idle = 0
        while len(found) < n:
            drawn = self.draw(rng)
            if self.split_of(drawn.key) == split and drawn.prompt not in found:
                found[drawn.prompt] = self._problem(drawn)
                idle = 0
            elif (idle := idle + 1) > _PATIENCE:
                raise ValueError(f"{self.name}: {split} has only {len(found)} problems, got n={n}\nask for fewer")
        return list(found.values())

    def _problem(self, drawn: Draw) -> Problem:
        return Problem(f"{self.name}-{_digest(drawn.prompt):016x}", drawn.prompt, drawn.answer)


def words_of(*texts: str) -> frozenset[str]:
    """The words of the texts; {slots} are left out.

    >>> sorted(words_of("{name} has {a} red hats."))
    ['has', 'hats', 'red']
    """
    out: set[str] = set()
    for text in texts:
        for piece in text.split():
            piece = piece.strip(".,:;?!\"'")
            if piece and "{" not in piece and piece.isalpha():
                out.add(piece)
    return frozenset(out)
