"""Where the problems of a run come from: tasks by name, a file of prompts, or prompts handed in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError
from pardec.rows import key_of
from pardec.tasks import FileTask, Problem, Task, expand, task
from pardec.tasks.scorers import Scorer, scorer

Prompts = str | Path | Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True)
class Given(Task):
    """Prompts handed in as text, or as {"prompt": ..., "answer": ...} like the lines of a prompts file."""

    given: tuple[Problem, ...]
    scorer: str
    name: str = "prompts"
    summary: str = "prompts handed in"

    @cached_property
    def _scorer(self) -> Scorer:
        return scorer(self.scorer)

    def __reduce__(self) -> tuple[Any, ...]:
        return Given, (self.given, self.scorer)  # a function of a file's own cannot be pickled

    def problems(self, split: str = "heldout", n: int | None = 50, seed: int = 7) -> list[Problem]:
        """The first `n` of them, None for all."""
        return list(self.given[:n])

    def score(self, problem: Problem, text: str) -> float | None:
        return self._scorer.score(problem, text)


def tasks(
    given: str | Task | Sequence[str | Task] | None, prompts: Prompts | None, scorer: str | None
) -> dict[str, Task]:
    """The tasks of a run by name; a group stands for its tasks.

    Raises:
        SpecError: there is none, two go by one name, or one cannot be used.
    """
    named = [given] if isinstance(given, str | Task) else list(given or ())
    found = [made for one in named for made in ([one] if isinstance(one, Task) else map(task, expand(one)))]
    if prompts is not None:
        found.append(_prompts(prompts, scorer or "exact"))
    elif scorer is not None:
        raise SpecError("a scorer is given without prompts", hint="tasks have their own; it goes with a prompts file")
    if not found:
        raise SpecError("no task and no prompts are given", hint='name a task such as "arithmetic", or a prompts file')
    made: dict[str, Task] = {}
    for one in found:
        if one.name in made:
            raise SpecError(f"two tasks are called {one.name!r}", hint="keep one of them, or rename the file")
        made[one.name] = one
    return made


def drawn(tasks: Mapping[str, Task], *, split: str, limit: int, seed: int) -> dict[str, list[Problem]]:
    """The problems of each task."""
    return {name: task.problems(split=split, n=limit, seed=seed) for name, task in tasks.items()}


def config(task: Task, problems: Sequence[Problem]) -> dict[str, Any]:
    """What a run's folder says of a task: enough to see that it is the same, and to make it again."""
    path, scored_by = getattr(task, "path", None), getattr(task, "scorer", None)
    code = Path(scored_by.rpartition(":")[0]).read_text(encoding="utf-8") if scored_by and ":" in scored_by else None
    return {
        "name": task.name,
        "file": None if path is None else str(path),
        "scorer": scored_by,
        "problems": len(problems),
        "digest": key_of([[problem.id, problem.prompt, problem.answer] for problem in problems], code),
    }


def _prompts(prompts: Prompts, named: str) -> Task:
    if isinstance(prompts, str | Path):
        return FileTask(prompts, scorer=named)
    rates, problems = scorer(named), []
    for index, prompt in enumerate(prompts):
        held = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt)
        unknown = [name for name in held if name not in ("id", "prompt", "answer")]
        if "prompt" not in held or unknown:
            raise SpecError(
                f"prompt {index} is {json.dumps(held, default=str)[:80]}",
                hint='a prompt is text, or {"prompt": "...", "answer": "..."} with an "id" if you like',
            )
        reason = None if held.get("answer") is None else rates.refuses(held["answer"])
        if reason is not None:
            raise SpecError(f"prompt {index}: the answer {reason}, which {named} needs", hint="change the answer")
        problems.append(Problem(str(held.get("id", index)), held["prompt"], held.get("answer")))
    return Given(tuple(problems), named)
