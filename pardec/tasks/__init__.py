"""Problems with exact scores, made by seeded generators."""

from __future__ import annotations

from pardec.tasks.arithmetic import Arithmetic
from pardec.tasks.base import Problem, Task, nearest
from pardec.tasks.lists import Lists
from pardec.tasks.records import Records

__all__ = ["Problem", "Task", "list_tasks", "task"]

_TASKS: dict[str, Task] = {made.name: made for made in (Arithmetic(), Lists(), Records())}


def list_tasks() -> list[str]:
    """Names that `task` takes."""
    return list(_TASKS)


def task(name: str) -> Task:
    """The task of that name; ValueError naming the nearest one otherwise.

    >>> problem = task("arithmetic").problems(n=1)[0]
    >>> task("arithmetic").score(problem, problem.answer)
    1.0
    """
    try:
        return _TASKS[name]
    except (KeyError, TypeError):
        known = tuple(_TASKS)
        raise ValueError(f"unknown task {name!r}{nearest(str(name), known)}\ntasks: {', '.join(known)}") from None
