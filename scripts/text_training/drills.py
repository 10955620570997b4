"""Tasks for training only: parts of other tasks, which are then learned in fewer steps."""

from __future__ import annotations

import random
from typing import ClassVar

from pardec.tasks import Generator, Problem, Task, task
from pardec.tasks.arithmetic import THINGS
from pardec.tasks.base import PEOPLE, Draw
from pardec.tasks.chains import QUESTION, Chains
from pardec.tasks.records import CITIES, JOBS

LEADS = ("Copy the list:", "Repeat this list:", "Reverse the list:")


class Names(Generator):
    """Copies or reverses lists of names."""

    name = "names"
    summary = "copy or reverse a list of names"
    vocabulary: ClassVar[tuple[str, ...]] = tuple(PEOPLE)

    def draw(self, rng: random.Random) -> Draw:
        lead, items = rng.choice(LEADS), rng.sample(self.vocabulary, rng.randint(2, 7))
        prompt = f"{lead} {' '.join(items)}."
        return Draw(prompt, prompt, " ".join(items[::-1] if lead.startswith("Reverse") else items))

    def score(self, problem: Problem, text: str) -> float:
        return float(text.split() == problem.answer.split())


class Words(Names):
    """Lists of jobs, cities and things, like the words that a story copies from its notes."""

    name = "words"
    summary = "copy or reverse a list of jobs, cities and things"
    vocabulary = (*JOBS, *CITIES, *THINGS)


class Holders(Names):
    """Lists the names of a chain in turn, without its sums. Problems are split like those of `chains`."""

    name = "holders"
    summary = "who takes part in a chain, in turn"
    chains = Chains("chains", 1, 7)

    def split_of(self, key: str) -> str:
        return self.chains.split_of(key)

    def draw(self, rng: random.Random) -> Draw:
        one = self.chains.draw(rng)
        prompt = one.prompt.replace(QUESTION, "Write the list.")
        return Draw(one.key, prompt, " ".join(word for word in prompt.split() if word in PEOPLE))


DRILLS: dict[str, Task] = {drill.name: drill for drill in (Names(), Words(), Holders())}


def task_or_drill(name: str) -> Task:
    """The task of that name, or the drill."""
    return DRILLS.get(name) or task(name)
