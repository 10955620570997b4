"""Word problems of many dependent steps: each line of the answer needs the number of the line before.

    Anna starts with 42 cups. Ben adds 7. Leo sells 3. How many remain?
    Ben gets from Anna: 42 + 7 = 49. Leo works for Ben: 49 - 3 = 46. answer 46

Names and operands are in the prompt, so the words of a line can be written at any time; its numbers cannot, and a
wrong guess is often close. A line has one of three wordings of the same length, whose words must agree: the likeliest
word at each position alone gives none of the three (`works from`). Start, signs, operands and the prompt's verbs decide
the split; names and things do not. Every result lies in 10..99.
"""

from __future__ import annotations

import random
import re
from typing import ClassVar

from .arithmetic import THINGS
from .base import PEOPLE, Draw, Generator, Problem, words_of

OPENINGS = ("{name} starts with {x} {things}.", "{name} has {x} {things}.")
STEPS = {
    "+": ("adds {y}.", "finds {y}.", "buys {y}."),
    "-": ("loses {y}.", "sells {y}.", "removes {y}."),
}
QUESTION = "How many remain?"
# how a line may begin, and how often the given answers do so
WORDINGS = {
    "{name} gets from {before}": 0.4,
    "{name} works with {before}": 0.35,
    "{name} works for {before}": 0.25,
}
LINE_TOKENS = 13  # tokens per line with the embedded models' tokenizer, in any wording
_LINE = re.compile(
    r"([A-Z][a-z]+) (?:gets from|works with|works for) ([A-Z][a-z]+): ([0-9]+) ([-+]) ([0-9]+) = ([0-9]+)\."
)
_ANSWER = re.compile(r"\banswer (0|[1-9][0-9]*)\b")


def step(rng: random.Random, x: int) -> tuple[str, int]:
    """A sign and an operand for which `x sign operand` stays in 10..99."""
    while True:
        sign, y = rng.choice("+-"), rng.randint(2, 9)
        if 10 <= (x + y if sign == "+" else x - y) <= 99:
            return sign, y


class Chains(Generator):
    """Problems of `fewest` to `most` steps, whose answers fit into `tokens`. Every length draws from one split."""

    summary = "word problems of dependent steps, one line per step"
    words: ClassVar[frozenset[str]] = words_of(
        "answer", QUESTION, *THINGS, *PEOPLE, *OPENINGS, *STEPS["+"], *STEPS["-"], *WORDINGS
    )

    def __init__(self, name: str = "chains", fewest: int = 6, most: int = 14, tokens: int = 256) -> None:
        if not 1 <= fewest <= most < len(PEOPLE):
            raise ValueError(f"chains: steps must lie in 1..{len(PEOPLE) - 1}, got {fewest} to {most}")
        self.name, self.fewest, self.most, self.tokens = name, fewest, most, tokens
        self.summary = f"word problems of {fewest} to {most} steps, each line of the answer needs the one before"

    def split_of(self, key: str) -> str:
        return self._split("chains", key)

    def draw(self, rng: random.Random) -> Draw:
        count = rng.randint(self.fewest, self.most)
        people = rng.sample(tuple(PEOPLE), count + 1)
        x = rng.randint(20, 89)
        opening = rng.choice(OPENINGS)
        sentences = [opening.format(name=people[0], x=x, things=rng.choice(THINGS))]
        key = [opening, str(x)]
        sums: list[tuple[int, str, int, int]] = []
        for name in people[1:]:
            sign, y = step(rng, x)
            sentence = rng.choice(STEPS[sign]).format(y=y)
            result = x + y if sign == "+" else x - y
            sentences.append(f"{name} {sentence}")
            key.append(sentence)
            sums.append((x, sign, y, result))
            x = result
        prompt = " ".join([*sentences, QUESTION])
        wording = random.Random("|".join(key))  # depends on this problem alone
        picks = wording.choices(tuple(WORDINGS), tuple(WORDINGS.values()), k=count)
        lines = [
            f"{pick.format(before=before, name=name)}: {x} {sign} {y} = {result}."
            for pick, before, name, (x, sign, y, result) in zip(picks, people, people[1:], sums, strict=False)
        ]
        return Draw("|".join(key), prompt, " ".join([*lines, f"answer {x}"]))

    def score(self, problem: Problem, text: str) -> float:
        """1.0 if every line is right, in any of the wordings, and the answer after them, else 0.0."""
        return float(_meaning(text) == _meaning(str(problem.answer)) is not None)

    def lenient(self, problem: Problem, text: str) -> float:
        """1.0 if the number after the last `answer` is right, whatever stands before it."""
        sums = _ANSWER.findall(text)
        return float(sums[-1:] == _ANSWER.findall(str(problem.answer))[-1:])


def _meaning(text: str) -> list[tuple[str, ...]] | None:
    """The content of the lines in any wording, and the answer; None for a text of another form."""
    text = " ".join(text.split())
    lines: list[tuple[str, ...]] = []
    at = 0
    while line := _LINE.match(text, at):
        lines.append(line.groups())
        at = line.end() + 1
    answer = _ANSWER.fullmatch(text, at)
    return [*lines, (answer[1],)] if lines and answer else None
