"""The base of all tasks (name, problems, score) and of seeded generators, whose splits are disjoint for all seeds."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pardec.models.errors import SpecError, did_you_mean

SPLITS = ("heldout", "train")
LIMIT = 100_000  # most problems one call hands out
_PATIENCE = 20_000  # draws in a row without a new problem before the split counts as exhausted


@dataclass(frozen=True)
class Problem:
    """One prompt, text or chat messages, and the answers that score 1.0.

    For a generated problem `id` is a function of the prompt alone and `answer` is text. For one from a file, `answer`
    is the file's value: text, a number, a list of accepted answers, any value for a user's scorer, or None.
    """

    id: str
    prompt: str | list[dict[str, Any]]
    answer: Any
    label: int | None = None  # the class to draw, in place of the prompt
    settings: Mapping[str, Any] | None = field(default=None, hash=False)  # its own arguments of `generate`, of a file


@dataclass(frozen=True)
class Draw:
    """One draw of a generator. `key` names template and operands: it decides the split."""

    key: str
    prompt: str
    answer: str


class Task(ABC):
    """A set of problems and a score for texts or images as answers."""

    name: str
    summary: str
    answers: ClassVar[str] = "text"  # or "picture": the kind of answer that `score` takes
    asks: ClassVar[str] = "text"  # or "class": whether models get the prompt of a problem or its label
    tokens: int = 64  # room for an answer and its end with the embedded models' tokenizer

    @abstractmethod
    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        """`n` distinct problems; the first ones stay the same when n grows."""

    @abstractmethod
    def score(self, problem: Problem, text: str) -> float | None:
        """The score of `text` as an answer to `problem`, in [0, 1]; 1.0 is exact. None without a known answer."""

    def length(self, problem: Problem) -> int:
        """The default number of tokens for an answer to `problem`, end token included."""
        return self.tokens

    def lenient(self, problem: Problem, text: str) -> float | None:
        """The score that ignores errors of form; the same as `score` by default."""
        return self.score(problem, text)

    def seen(self, problem: Problem, text: str) -> dict[str, Any]:
        """Additional values of an answer that a row of a comparison stores, by name."""
        return {}


def checked_count(name: str, n: object) -> int:
    """`n` as a number of problems; SpecError unless it lies in 1..LIMIT."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= LIMIT:
        raise SpecError(f"{name}: n must lie in 1..{LIMIT}, got {n}", hint="n is how many problems to hand out")
    return n


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class Generator(Task):
    """A seeded generator of problems with exact scores.

    `words` and `bare_words` are single tokens of the embedded models' tokenizer, after a space and directly after a
    quote; a task that these models are not trained on leaves both empty.
    """

    words: ClassVar[frozenset[str]] = frozenset()
    bare_words: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def draw(self, rng: random.Random) -> Draw:
        """Draws one problem of either split."""

    @abstractmethod
    def score(self, problem: Problem, text: str) -> float:
        """The score of `text` as an answer to `problem`, in [0, 1]; 1.0 is exact."""

    def split_of(self, key: str) -> str:
        """The split of a template and operands, which is the same for all seeds; about a tenth is held out."""
        return self._split(self.name, key)

    @staticmethod
    def _split(name: str, key: str) -> str:
        return "heldout" if _digest(f"{name}|{key}") % 10 == 0 else "train"

    def sample(self, rng: random.Random, split: str = "train") -> Problem:
        """One problem of the split; advances rng."""
        while True:
            draw = self.draw(rng)
            if self.split_of(draw.key) == split:
                return self._problem(draw)

    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        """`n` distinct problems; the first ones stay the same when n grows.

        Raises:
            SpecError: an unknown split, or more problems than there are.

        >>> from pardec.tasks import task
        >>> [p.answer for p in task("lists").problems(n=1)] == [task("lists").problems(n=3)[0].answer]
        True
        """
        check_split(split)
        checked_count(self.name, n)
        rng = random.Random(f"{self.name}/{split}/{seed}")
        pool: dict[str, Problem] = {}
        idle = 0
        while len(pool) < n:
            draw = self.draw(rng)
            if self.split_of(draw.key) == split and draw.prompt not in pool:
                pool[draw.prompt] = self._problem(draw)
                idle = 0
            elif (idle := idle + 1) > _PATIENCE:
                raise SpecError(f"{self.name}: {split} has only {len(pool)} problems, got n={n}", hint="ask for fewer")
        return list(pool.values())

    def _problem(self, draw: Draw) -> Problem:
        return Problem(f"{self.name}-{_digest(draw.prompt):016x}", draw.prompt, draw.answer)


def words_of(*texts: str) -> frozenset[str]:
    """The words of the texts; {slots} are left out.

    >>> sorted(words_of("{name} has {a} red hats."))
    ['has', 'hats', 'red']
    """
    out: set[str] = set()
    for text in texts:
        for word in text.split():
            word = word.strip(".,:;?!\"'")
            if word and "{" not in word and word.isalpha():
                out.add(word)
    return frozenset(out)


def check_split(split: str) -> None:
    """Raises SpecError for an unknown split."""
    if split not in SPLITS:
        raise SpecError(
            f"unknown split {split!r}{did_you_mean(str(split), SPLITS)}", hint=f"splits: {', '.join(SPLITS)}"
        )


# name -> pronouns as subject and as object
PEOPLE: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("Anna", "Maria", "Ella", "Nina", "Rosa", "Sara", "Lena", "Olga"), ("she", "her")),
    **dict.fromkeys(("Tom", "Ben", "Max", "Omar", "Paul", "Ravi", "Leo", "Hugo"), ("he", "him")),
}
