"""The measurements of `tune`: comparisons on selected problems, one folder each."""

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
class ProblemSet(Task):
    """Problems of one or several tasks in a fixed order, each scored by its own task."""

    owners: tuple[tuple[Task, Problem], ...]
    name: str = "tuning"
    summary: str = "problems of a search"

    @cached_property
    def _tasks(self) -> Mapping[str, Task]:
        return {problem.id: task for task, problem in self.owners}

    def problems(self, split: str = "heldout", n: int | None = 50, seed: int = 7) -> list[Problem]:
        """The first `n` problems, for any split."""
        return [problem for _, problem in self.owners[:n]]

    def score(self, problem: Problem, text: str) -> float | None:
        return self._tasks[problem.id].score(problem, text)

    def length(self, problem: Problem) -> int:
        return self._tasks[problem.id].length(problem)

    def lenient(self, problem: Problem, text: str) -> float | None:
        return self._tasks[problem.id].lenient(problem, text)


def split_problems(tasks: Sequence[Task], tuning: int, confirming: int, seed: int) -> tuple[ProblemSet, ProblemSet]:
    """Disjoint sets of problems for tuning and for confirmation, alternating between the tasks.

    A task with two splits provides `train` for tuning and `heldout` for confirmation; one with a single split, such as
    a file, is shuffled by the seed, and at most half of its problems are used for confirmation.
    """
    searches, confirmations = [], []
    for task in tasks:
        a, b = _split_task(task, -(-tuning // len(tasks)), -(-confirming // len(tasks)), seed)
        searches.append([(task, problem) for problem in a])
        confirmations.append([(task, problem) for problem in b])
    return ProblemSet(_interleave(searches)[:tuning]), ProblemSet(
        _interleave(confirmations)[:confirming], name="confirmation"
    )


def _split_task(task: Task, tuning: int, confirming: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    train, heldout = (_sample(task, split, n, seed) for split, n in (("train", tuning), ("heldout", confirming)))
    prompts = {str(problem.prompt) for problem in train}
    if not any(str(problem.prompt) in prompts for problem in heldout):
        return train, heldout
    by_prompt = {str(problem.prompt): problem for problem in _sample(task, "heldout", tuning + confirming, seed)}
    problems = list(by_prompt.values())
    if len(problems) < 2:
        raise SpecError(
            f"{task.name} has {len(problems)} problem, and tuning needs at least 2",
            hint="give it problems for the search, and others that confirm its result",
        )
    random.Random(f"tune/{task.name}/{seed}").shuffle(problems)
    cut = min(confirming, len(problems) // 2)
    return problems[cut:], problems[:cut]


def _sample(task: Task, split: str, count: int, seed: int) -> list[Problem]:
    """`count` problems, or as many as there are."""
    while True:
        try:
            return task.problems(split, count, seed)
        except SpecError:  # the task has fewer
            if count == 1:
                raise
            count = count * 3 // 4


def _interleave(lists: list[list[tuple[Task, Problem]]]) -> tuple[tuple[Task, Problem], ...]:
    """Alternates between the lists; with several tasks, ids are prefixed with the task."""
    result = []
    for at in range(max(map(len, lists))):
        for problems in lists:
            if at < len(problems):
                task, problem = problems[at]
                result.append((task, problem if len(lists) == 1 else replace(problem, id=f"{task.name}/{problem.id}")))
    return tuple(result)


@dataclass(frozen=True)
class Bench:
    """Runs comparisons. `settings` are the arguments of `compare` that all of them share."""

    model: Model | str
    settings: Mapping[str, Any]
    out: Path | None

    def measure(
        self, stage: str, candidates: Sequence[Candidate], problem_set: ProblemSet, start: int, stop: int
    ) -> dict[Candidate, list[Outcome | None]]:
        """Decodes the problems [start, stop) with each candidate; None for a failed decode."""
        return self.decode(stage, candidates, replace(problem_set, owners=problem_set.owners[start:stop]))

    def decode(
        self, stage: str, candidates: Sequence[Candidate], problems: ProblemSet
    ) -> dict[Candidate, list[Outcome | None]]:
        """Decodes all of `problems` with each candidate."""
        outcomes: dict[Candidate, list[Outcome | None]] = {}
        for block in dict.fromkeys(candidate.block_length for candidate in candidates):
            group = [candidate for candidate in candidates if candidate.block_length == block]
            name = stage if block is None else f"{stage}-block-{block}"
            settings: dict[str, Any] = {} if block is None else {"block_length": block}
            table = compare(
                self.model,
                problems,
                [candidate.spec for candidate in group],
                limit=len(problems.owners),
                references=False,
                replays=0,
                out=None if self.out is None else self.out / name,
                **{**self.settings, **settings},
            )
            rows = {(row["sampler"], row["index"]): row for row in table.run.rows}
            for candidate in group:
                outcomes[candidate] = [_outcome(rows.get((candidate.spec, at))) for at in range(len(problems.owners))]
        return outcomes


def _outcome(row: Mapping[str, Any] | None) -> Outcome | None:
    if row is None or row["error"] is not None:
        return None
    if row["score"] is None:
        raise SpecError(
            f"problem {row['problem']} has no score, and tuning needs one",
            hint='give every prompt an "answer", or a scorer that needs none',
        )
    return Outcome(row["score"], row["nfe"], row["tokens_fed"], row["seconds"])


@dataclass
class Baseline:
    """Outcomes of the baseline, decoded only where they can change a decision.

    Where a candidate's score is 1 the baseline is assumed to score 1 too, which never underestimates the candidate's
    drop. This avoids decoding an expensive baseline on problems that every candidate solves.
    """

    bench: Bench
    candidate: Candidate
    problem_set: ProblemSet
    known: dict[int, Outcome | None] = field(default_factory=dict)  # by problem; None where the decode failed

    def decode_together(
        self, stage: str, candidates: Sequence[Candidate], start: int, stop: int
    ) -> dict[Candidate, list[Outcome | None]]:
        """Decodes [start, stop) with baseline and candidates, alternating, so that their times are comparable."""
        outcomes = self.bench.measure(stage, [self.candidate, *candidates], self.problem_set, start, stop)
        self.known |= dict(enumerate(outcomes[self.candidate], start))
        return outcomes

    def decode(self, stage: str, problems: Sequence[int]) -> None:
        """Decodes the `problems` that are not decoded yet."""
        unknown = [at for at in problems if at not in self.known]
        if unknown:
            problem_set = replace(self.problem_set, owners=tuple(self.problem_set.owners[at] for at in unknown))
            outcomes = self.bench.decode(stage, [self.candidate], problem_set)[self.candidate]
            self.known |= dict(zip(unknown, outcomes, strict=True))

    def decode_if_needed(
        self, stage: str, rows: Mapping[Candidate, Sequence[Outcome | None]], start: int, stop: int
    ) -> list[Outcome | None]:
        """The outcomes on [start, stop), decoded where one of `rows` has a score below 1, assumed elsewhere."""
        per_problem = zip(*rows.values(), strict=True)
        self.decode(
            stage,
            [
                at
                for at, outcomes in enumerate(per_problem, start)
                if any(outcome and outcome.score < 1 for outcome in outcomes)
            ],
        )
        return self.outcomes(start, stop)

    def outcomes(self, start: int, stop: int) -> list[Outcome | None]:
        """The decoded and assumed outcomes on [start, stop)."""
        return [self.known.get(at, ASSUMED) for at in range(start, stop)]
