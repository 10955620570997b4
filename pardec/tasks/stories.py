"""Short stories from notes: the events are given, the wording is free, and the words have to agree grammatically.

    Write of Anna, a baker in Rome: + 4 cups - 7 coins.
    Anna works as a baker in Rome. She buys 4 cups. Then a friend takes 7 coins from her.

A sentence tells one note in one of several wordings of different length and word order, with or without an opening
word; the first words of a wording determine the rest. Neighbouring sentences never begin with the same word, so that
each depends on the two next to it. The notes except the name decide the split. Every story of the grammar is right; a
judge's likelihood of a right story is reported next to the score.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pardec.models.errors import SpecError

from .arithmetic import THINGS
from .base import PEOPLE, Draw, Generator, Problem, words_of
from .records import CITIES, JOBS

INTRODUCTIONS = (
    "{name} is a {job} in {city}.",
    "{name} works as a {job} in {city}.",
    "In {city} lives a {job} called {name}.",
    "There is a {job} in {city} called {name}.",
    "The {job} {name} lives in {city}.",
)
EVENTS = {
    "+": (
        "{he} finds {n} {things}.",
        "{he} buys {n} {things}.",
        "{he} gets {n} {things} from a friend.",
        "a friend gives {him} {n} {things}.",
        "a friend brings {n} {things} to {him}.",
    ),
    "-": (
        "{he} loses {n} {things}.",
        "{he} sells {n} {things}.",
        "{he} throws away {n} {things}.",
        "{he} gives {n} {things} to a friend.",
        "a friend takes {n} {things} from {him}.",
    ),
}
BEFORE = ("", "Then ", "Later ")
_PROMPT = re.compile(r"Write of ([A-Z][a-z]+), a ([a-z]+) in ([A-Z][a-z]+):((?: [-+] [2-9] [a-z]+)+)\.")
_NOTE = re.compile(r"([-+]) ([2-9]) ([a-z]+)")

Judge = Callable[[str, str], float]  # prompt, text -> the mean negative log-likelihood of the text's tokens, in nats


@dataclass(frozen=True)
class Notes:
    """The notes of a prompt: a person, and the signed numbers of things that come and go."""

    name: str
    job: str
    city: str
    events: tuple[tuple[str, str, str], ...]  # sign, number, things

    def sentences(self) -> Iterator[list[str]]:
        """All wordings of each sentence of a story."""
        yield [form.format(name=self.name, job=self.job, city=self.city) for form in INTRODUCTIONS]
        he, him = PEOPLE[self.name]
        for sign, n, things in self.events:
            events = [form.format(he=he, him=him, n=n, things=things) for form in EVENTS[sign]]
            yield [before + one if before else one[0].upper() + one[1:] for before in BEFORE for one in events]

    def prompt(self) -> str:
        events = " ".join(f"{sign} {n} {things}" for sign, n, things in self.events)
        return f"Write of {self.name}, a {self.job} in {self.city}: {events}."


def notes_of(prompt: object) -> Notes:
    """The notes in a prompt of this task. Raises SpecError for any other prompt."""
    match = _PROMPT.fullmatch(str(prompt))
    if match is None or match[1] not in PEOPLE:
        raise SpecError(f"{prompt!r} is not a prompt of stories", hint='task("stories").problems() makes them')
    events = tuple((note[1], note[2], note[3]) for note in _NOTE.finditer(match[4]))
    return Notes(match[1], match[2], match[3], events)


def _begin_alike(one: str, other: str) -> bool:
    return one.split(" ", 1)[0] == other.split(" ", 1)[0]


class Stories(Generator):
    """Stories of `fewest` to `most` events, which fit into `tokens`. Every length draws from one split.

    Args:
        judge: rates right stories; `ModelJudge` makes one of a causal model. None leaves the rating out.
    """

    words: ClassVar[frozenset[str]] = words_of(
        "Write of a in he she him her He She A", *PEOPLE, *CITIES, *JOBS, *THINGS, *INTRODUCTIONS, *EVENTS["+"],
        *EVENTS["-"], *BEFORE,
    )  # fmt: skip

    def __init__(
        self, name: str = "stories", fewest: int = 2, most: int = 6, tokens: int = 64, judge: Judge | None = None
    ) -> None:
        if not 1 <= fewest <= most:
            raise ValueError(f"stories: events must lie in 1.., the fewest first, got {fewest} to {most}")
        self.name, self.fewest, self.most, self.tokens, self.judge = name, fewest, most, tokens, judge
        self.summary = f"stories of {fewest} to {most} events, told from notes in words that agree"

    def judged_by(self, judge: Judge) -> Stories:
        """The same task with a judge.

        >>> from pardec.tasks import task
        >>> judged = task("stories").judged_by(lambda prompt, text: 0.5)
        >>> problem = judged.problems(n=1)[0]
        >>> judged.seen(problem, problem.answer)
        {'judge_nats': 0.5}
        """
        return Stories(self.name, self.fewest, self.most, self.tokens, judge)

    def split_of(self, key: str) -> str:
        return self._split("stories", key)

    def draw(self, rng: random.Random) -> Draw:
        count = rng.randint(self.fewest, self.most)
        events = tuple((rng.choice("+-"), str(rng.randint(2, 9)), rng.choice(THINGS)) for _ in range(count))
        notes = Notes(rng.choice(tuple(PEOPLE)), rng.choice(JOBS), rng.choice(CITIES), events)
        prompt = notes.prompt()
        telling = random.Random(prompt)  # depends on this problem alone
        story = [""]
        for wordings in notes.sentences():
            story.append(telling.choice([one for one in wordings if not _begin_alike(one, story[-1])]))
        return Draw(prompt.split(",", 1)[1], prompt, " ".join(story[1:]))

    def score(self, problem: Problem, text: str) -> float:
        """1.0 if text is a story that the grammar gives for the notes, else 0.0."""
        story = self._story(problem, text)
        return float(story is not None and not any(map(_begin_alike, story, story[1:])))

    def lenient(self, problem: Problem, text: str) -> float:
        """Like `score`, but neighbouring sentences may begin with the same word."""
        return float(self._story(problem, text) is not None)

    def seen(self, problem: Problem, text: str) -> dict[str, Any]:
        """The judge's loss on a right story: `judge_nats`, nats per token; lower is likelier."""
        if self.judge is None or not self.score(problem, text):
            return {}
        return {"judge_nats": self.judge(str(problem.prompt), text)}

    @staticmethod
    def _story(problem: Problem, text: str) -> list[str] | None:
        """The sentences of text if each tells its note in one of the wordings, else None."""
        allowed = list(notes_of(problem.prompt).sentences())
        story = [f"{one}." for one in " ".join(text.split()).removesuffix(".").split(". ")]
        if not text.rstrip().endswith(".") or len(story) != len(allowed):
            return None
        return story if all(one in wordings for one, wordings in zip(story, allowed, strict=True)) else None
