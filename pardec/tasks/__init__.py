"""Problems with exact scores: made by seeded generators, or read from a file."""

from __future__ import annotations

import os
from pathlib import Path

from pardec.models.errors import UnknownNameError, did_you_mean

from .arithmetic import Arithmetic
from .base import Generator, Problem, Task
from .captions import Captions
from .chains import Chains
from .classes import Classes
from .files import FileTask
from .grids import Grids
from .lists import Lists
from .parallel import Insert, Remove, Replace, Shuffle, Sort
from .records import Records
from .stories import Stories

__all__ = ["GROUPS", "FileTask", "Generator", "Problem", "Task", "expand", "list_tasks", "task"]

_TASKS: dict[str, Task] = {
    each.name: each
    for each in (
        Arithmetic(), Lists(), Records(), Insert(), Remove(), Shuffle(), Replace(), Sort(),
        Chains(), Chains("chains-64", 2, 4, 64), Chains("chains-128", 5, 8, 128),
        Grids(), Grids("grids-128", 8, 10, 24, 128),
        Stories(), Stories("stories-128", 7, 13, 128), Stories("stories-256", 15, 27, 256),
        Captions(), Classes(),
    )
}  # fmt: skip
GROUPS: dict[str, tuple[str, ...]] = {"parallel": ("insert", "remove", "shuffle", "replace", "sort")}


def list_tasks() -> list[str]:
    """The names that `task` accepts."""
    return list(_TASKS)


def task(name: str | os.PathLike[str]) -> Task:
    """The task of that name, or a file of prompts as a task, scored by `exact` (others: `pardec.tasks.FileTask`).

    Raises:
        UnknownNameError: neither a task nor a file; it names the nearest task.
        SpecError: the file cannot be read, with the line.

    >>> problem = task("arithmetic").problems(n=1)[0]
    >>> task("arithmetic").score(problem, problem.answer)
    1.0
    """
    if isinstance(name, str) and name in _TASKS:
        return _TASKS[name]
    if _is_file(name):
        return FileTask(name)
    if isinstance(name, str) and name in GROUPS:
        raise UnknownNameError(f"{name!r} is a group of tasks", hint=f"one of them: {', '.join(GROUPS[name])}")
    known = [*_TASKS, *GROUPS]
    raise UnknownNameError(
        f"unknown task {name!r}{did_you_mean(str(name), known)}",
        hint=f"tasks: {', '.join(known)}, or a file such as problems.jsonl",
    )


def expand(name: str) -> list[str]:
    """The task names of a group; for a task, its own name.

    Raises:
        UnknownNameError: neither a task, a group nor a file.

    >>> expand("parallel")
    ['insert', 'remove', 'shuffle', 'replace', 'sort']
    """
    if name in GROUPS and not _is_file(name):
        return list(GROUPS[name])
    if name not in _TASKS and not _is_file(name):
        task(name)
    return [name]


def _is_file(name: object) -> bool:
    """Whether `name` has the form of a file, which need not exist."""
    if not isinstance(name, str):
        return isinstance(name, os.PathLike)
    return name not in _TASKS and (
        Path(name).suffix in (".jsonl", ".json", ".csv", ".tsv", ".txt") or Path(name).is_file()
    )
