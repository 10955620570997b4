"""Where `tune` measures: comparisons on problems of its own choice, one folder each."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError

from ...tasks import Problem, Task
from ..runner import compare
from .halving import ASSUMED, Outcome
from .space import Candidate

if TYPE_CHECKING:
    from ...api import Model


@dataclass(frozen=True)
class Chosen(Task):
    """Problems of one task or several in a fixed order, scored by the task that each is of."""

    owners: tuple[tuple[Task, Problem], ...]
    name: str = "tuning"
    summary: str = "problems of a search"

    @cached_property
    def _tasks(self) -> Mapping[str, Task]:
        return {problem.id: task for task, problem in self.owners}

    def problems(self, split: str = "heldout", n: int | None = 50, seed: int = 7) -> list[Problem]:
        """The first `n` of them, whatever the split."""
        return [problem for _, problem in self.owners[:n]]

    def score(self, problem: Problem, text: str) -> float | None:
        return self._tasks[problem.id].score(problem, text)

    def lenient(self, problem: Problem, text: str) -> float | None:
        return self._tasks[problem.id].lenient(problem, text)


def deal(tasks: Sequence[Task], tuning: int, confirming: int, seed: int) -> tuple[Chosen, Chosen]:
    """Problems to tune on and problems to confirm on, none in both, the tasks taking turns.

    A task with two splits gives of `train` and of `heldout`; one with a single split, such as a file, is shuffled by
    the seed, and gives at most half of its problems to the confirmation.
    """
    first, second = [], []
    for task in tasks:
        a, b = _apart(task, -(-tuning // len(tasks)), -(-confirming // len(tasks)), seed)
        first.append([(task, problem) for problem in a])
        second.append([(task, problem) for problem in b])
    return Chosen(_interleave(first)[:tuning]), Chosen(_interleave(second)[:confirming], name="confirmation")


def _apart(task: Task, tuning: int, confirming: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    train, heldout = (_sample(task, split, n, seed) for split, n in (("train", tuning), ("heldout", confirming)))
    known = {str(problem.prompt) for problem in train}
    if not any(str(problem.prompt) in known for problem in heldout):
        return train, heldout
    every = {str(problem.prompt): problem for problem in _sample(task, "heldout", tuning + confirming, seed)}
    mixed = list(every.values())
    if len(mixed) < 2:
        raise SpecError(
            f"{task.name} has {len(mixed)} problem", hint="tuning takes some to search and others to confirm"
        )
    random.Random(f"tune/{task.name}/{seed}").shuffle(mixed)
    cut = min(confirming, len(mixed) // 2)
    return mixed[cut:], mixed[:cut]


def _sample(task: Task, split: str, count: int, seed: int) -> list[Problem]:
    """`count` problems, or as many as there are."""
    while True:
        try:
            return task.problems(split, count, seed)
        except SpecError:  # fewer than that
            if count == 1:
                raise
            count = count * 3 // 4


def _interleave(lists: list[list[tuple[Task, Problem]]]) -> tuple[tuple[Task, Problem], ...]:
    """One of each list, again and again; ids are told apart where there are several tasks."""
    found = []
    for at in range(max(map(len, lists))):
        for owned in lists:
            if at < len(owned):
                task, problem = owned[at]
                found.append((task, problem if len(lists) == 1 else replace(problem, id=f"{task.name}/{problem.id}")))
    return tuple(found)


@dataclass(frozen=True)
class Bench:
    """Runs comparisons. `settings` are those of `compare` that hold for all of them."""

    model: Model | str
    settings: Mapping[str, Any]
    out: Path | None

    def measure(
        self, stage: str, candidates: Sequence[Candidate], chosen: Chosen, start: int, stop: int
    ) -> dict[Candidate, list[Outcome | None]]:
        """Decodes the problems [start, stop) with each candidate; None where one failed or nothing scores it."""
        return self.decode(stage, candidates, replace(chosen, owners=chosen.owners[start:stop]))

    def decode(
        self, stage: str, candidates: Sequence[Candidate], some: Chosen
    ) -> dict[Candidate, list[Outcome | None]]:
        """The same for all problems of `some`."""
        found: dict[Candidate, list[Outcome | None]] = {}
        for block in dict.fromkeys(candidate.block_length for candidate in candidates):
            own = [candidate for candidate in candidates if candidate.block_length == block]
            name = stage if block is None else f"{stage}-block-{block}"
            more: dict[str, Any] = {} if block is None else {"block_length": block}
            table = compare(
                self.model,
                some,
                [candidate.spec for candidate in own],
                limit=len(some.owners),
                references=False,
                replays=0,
                out=None if self.out is None else self.out / name,
                **{**self.settings, **more},
            )
            rows = {(row["sampler"], row["index"]): row for row in table.run.rows}
            for candidate in own:
                found[candidate] = [_outcome(rows.get((candidate.spec, at))) for at in range(len(some.owners))]
        return found


def _outcome(row: Mapping[str, Any] | None) -> Outcome | None:
    if row is None or row["error"] is not None:
        return None
    if row["score"] is None:
        raise SpecError(
            f"problem {row['problem']} has no score, and tuning is about quality",
            hint='give every prompt an "answer", or a scorer that needs none',
        )
    return Outcome(row["score"], row["nfe"], row["tokens_fed"], row["seconds"])


@dataclass
class Baseline:
    """The baseline on problems, decoded only where it tells candidates apart from it.

    Where a candidate is fully right, none can be better: the baseline is assumed right there too, which makes the drop
    of the candidate no smaller than it is. So a baseline of many forwards is not decoded on what everybody solves.
    """

    bench: Bench
    candidate: Candidate
    chosen: Chosen
    known: dict[int, Outcome | None] = field(default_factory=dict)  # by problem; None where the decode failed

    def together(
        self, stage: str, candidates: Sequence[Candidate], start: int, stop: int
    ) -> dict[Candidate, list[Outcome | None]]:
        """Decodes [start, stop) with the baseline and with candidates, in turns, so that their times compare."""
        found = self.bench.measure(stage, [self.candidate, *candidates], self.chosen, start, stop)
        self.known |= dict(enumerate(found[self.candidate], start))
        return found

    def decode(self, stage: str, problems: Sequence[int]) -> None:
        """Decodes these, where they are not known."""
        fresh = [at for at in problems if at not in self.known]
        if fresh:
            some = replace(self.chosen, owners=tuple(self.chosen.owners[at] for at in fresh))
            outcomes = self.bench.decode(stage, [self.candidate], some)[self.candidate]
            self.known |= dict(zip(fresh, outcomes, strict=True))

    def beside(
        self, stage: str, rows: Mapping[Candidate, Sequence[Outcome | None]], start: int, stop: int
    ) -> list[Outcome | None]:
        """Its outcomes on [start, stop), decoded where one of `rows` is not fully right, assumed elsewhere."""
        together = zip(*rows.values(), strict=True)
        self.decode(
            stage, [at for at, some in enumerate(together, start) if any(one and one.score < 1 for one in some)]
        )
        return self.outcomes(start, stop)

    def outcomes(self, start: int, stop: int) -> list[Outcome | None]:
        """What is known of [start, stop), and what is assumed."""
        return [self.known.get(at, ASSUMED) for at in range(start, stop)]
