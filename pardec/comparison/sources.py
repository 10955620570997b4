"""Where the problems of a run come from: tasks by name, a file of prompts, or prompts handed in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError

from ..io.jsonl import key_of
from ..io.prompt_files import read_item
from ..tasks import FileTask, Problem, Task, expand, task
from ..tasks.files import answer_of
from ..tasks.functions import code_of, importable, name_of
from ..tasks.scorers import Score, Scorer, scorer

FIELDS = ("id", "prompt", "messages", "answer", "answers")  # of a prompt, as a file's lines have them

Prompts = str | Path | Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True)
class Given(Task):
    """Prompts handed in as text, or with the fields that the lines of a prompts file have."""

    given: tuple[Problem, ...]
    scorer: str | Score
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


def refuse_unnamed(scorer: str | Score | None, executor: str) -> None:
    """Refuses a function that the processes of `executor` could not find."""
    if executor == "ray" and scorer is not None and not importable(scorer):
        raise SpecError(
            f"the ray executor scores in other processes, which cannot import {name_of(scorer)}",
            hint='put the function into a module, or name it by its file: scorer="file.py:function"',
        )


def tasks(
    given: str | Task | Sequence[str | Task] | None, prompts: Prompts | None, scorer: str | Score | None
) -> dict[str, Task]:
    """The tasks of a run by name; a group stands for its tasks. Raises SpecError, also where two go by one name."""
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


def config(task: Task, problems: Sequence[Problem]) -> dict[str, Any]:
    """What a run's folder says of a task: enough to see that it is the same, and to make it again."""
    path, scored_by = getattr(task, "path", None), getattr(task, "scorer", None)
    return {
        "name": task.name,
        "file": None if path is None else str(path),
        "scorer": scored_by and name_of(scored_by),
        "problems": len(problems),
        "digest": key_of([[problem.id, problem.prompt, problem.answer] for problem in problems], code_of(scored_by)),
    }


def _prompts(prompts: Prompts, rated: str | Score) -> Task:
    if isinstance(prompts, str | Path):
        return FileTask(prompts, scorer=rated)
    rates, problems = scorer(rated), []
    for index, prompt in enumerate(prompts):
        held = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt)
        unknown = [name for name in held if name not in FIELDS]
        if unknown or not {"prompt", "messages"} & held.keys():
            raise SpecError(
                f"prompt {index} is {json.dumps(held, default=str)[:80]}",
                hint='a prompt is text, or {"prompt": "...", "answer": "..."} with an "id" if you like',
            )
        item = read_item(held, index, 0, f"prompt {index}")
        problems.append(Problem(str(item.id), item.prompt, answer_of(item, f"prompt {index}", rates, name_of(rated))))
    if not problems:
        raise SpecError("prompts holds no prompt", hint="give at least one, or leave prompts out and name a task")
    return Given(tuple(problems), rated)
