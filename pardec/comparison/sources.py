"""The problems of a run: from tasks by name, from a file of prompts, or from prompts passed as arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError

from ..io.jsonl import key_of
from ..io.prompt_files import COMPARED, read_item
from ..tasks import FileTask, Problem, Task, expand, task
from ..tasks.files import answer_of, problem_of
from ..tasks.functions import code_of, importable, name_of
from ..tasks.scorers import SCORERS, Score, Scorer, scorer

DEFAULT_SCORER = "exact"

Prompts = str | Path | Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True)
class PromptTask(Task):
    """Prompts passed as text, or as dictionaries with the fields of a line of a prompts file."""

    items: tuple[Problem, ...]
    scorer: str | Score
    name: str = "prompts"
    summary: str = "prompts passed as arguments"

    @cached_property
    def _scorer(self) -> Scorer:
        return scorer(self.scorer)

    def __reduce__(self) -> tuple[Any, ...]:
        return PromptTask, (self.items, self.scorer)  # a function loaded from a file cannot be pickled

    def problems(self, split: str = "heldout", n: int | None = 50, seed: int = 7) -> list[Problem]:
        """The first `n` prompts, or all for None."""
        return list(self.items[:n])

    def score(self, problem: Problem, text: str) -> float | None:
        return self._scorer.score(problem, text)


def refuse_unnamed(scorer: str | Score | None, executor: str) -> None:
    """Raises SpecError for a function that the processes of `executor` cannot import."""
    if executor == "ray" and scorer is not None and not importable(scorer):
        raise SpecError(
            f"the ray executor scores in other processes, which cannot import {name_of(scorer)}",
            hint='put the function into a module, or name it by its file: scorer="file.py:function"',
        )


def unanswered(task: Task) -> list[str]:
    """The ids of the problems without an answer, which the package's scorers need."""
    name = getattr(task, "scorer", None)
    if not isinstance(task, FileTask | PromptTask) or not isinstance(name, str) or name not in SCORERS:
        return []
    return [problem.id for problem in task.problems(n=None) if problem.answer is None]


def tasks(
    names: str | Task | Sequence[str | Task] | None, prompts: Prompts | None, scorer: str | Score | None
) -> dict[str, Task]:
    """The tasks of a run by name; a group is expanded into its tasks. Raises SpecError, also for duplicate names."""
    task_list = [names] if isinstance(names, str | Task) else list(names or ())
    all_tasks = [
        by_name for item in task_list for by_name in ([item] if isinstance(item, Task) else map(task, expand(item)))
    ]
    if prompts is not None:
        all_tasks.append(_prompts(prompts, scorer or DEFAULT_SCORER))
    elif scorer is not None:
        raise SpecError("a scorer is given without prompts", hint="tasks have their own scorers; pass prompts too")
    if not all_tasks:
        raise SpecError(
            "no task and no prompts are given", hint='for example task="arithmetic", or prompts="FILE.jsonl"'
        )
    by_name: dict[str, Task] = {}
    for item in all_tasks:
        if item.name in by_name:
            raise SpecError(f"two tasks are called {item.name!r}", hint="keep one of them, or rename the file")
        by_name[item.name] = item
    return by_name


def config(task: Task, problems: Sequence[Problem]) -> dict[str, Any]:
    """The description of a task in a run's folder: enough to recognize and to recreate it."""
    path, task_scorer = getattr(task, "path", None), getattr(task, "scorer", None)
    return {
        "name": task.name,
        "file": None if path is None else str(path),
        "scorer": task_scorer and name_of(task_scorer),
        "problems": len(problems),
        "tokens": max(map(task.length, problems)),
        "digest": key_of([_identity(problem) for problem in problems], code_of(task_scorer)),
    }


def _identity(problem: Problem) -> list[Any]:
    return [problem.id, problem.prompt, problem.answer, *([problem.settings] if problem.settings else [])]


def _prompts(prompts: Prompts, scoring: str | Score) -> Task:
    if isinstance(prompts, str | Path):
        return FileTask(prompts, scorer=scoring)
    scores, problems = scorer(scoring), []
    for index, prompt in enumerate(prompts):
        fields = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt)
        if not {"prompt", "messages"} & fields.keys():
            raise SpecError(
                f"prompt {index} is {json.dumps(fields, default=str)[:80]}",
                hint='a prompt is text, or {"prompt": "...", "answer": "..."} with an "id" if you like',
            )
        item = read_item(fields, index, 0, f"prompt {index}", COMPARED)
        answer = answer_of(item, f"prompt {index}", scores, name_of(scoring))
        problems.append(problem_of(item, answer, f"prompt {index}"))
    if not problems:
        raise SpecError("prompts is empty", hint="give at least one prompt, or leave prompts out and name a task")
    return PromptTask(tuple(problems), scoring)
