"""Checks a scorer on the first row that it rates, so that a wrong one is found before everything is decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..io.jsonl import Row
from ..tasks import Task
from ..tasks.functions import ScoreError, name_of
from ..tasks.scorers import SCORERS
from .units import Problems

_FAILED = "ScoreError: "  # how the error of a row begins


class ScorerCheck:
    """Checks the first finished row of each task that a user's scorer rates; `warn` gets warnings."""

    def __init__(self, tasks: Mapping[str, Task], problems: Problems, warn: Callable[[str], object]) -> None:
        self._problems, self._warn = problems, warn
        scorers = {name: getattr(task, "scorer", None) for name, task in tasks.items()}
        self._unchecked = {
            name: name_of(scorer) for name, scorer in scorers.items() if scorer and scorer not in SCORERS
        }

    def row(self, row: Row) -> None:
        """Raises ScoreError if the scorer failed on the task's first row, and warns if it returned None."""
        if row["task"] not in self._unchecked:
            return
        error = row["error"]
        if error is not None and not error.startswith(_FAILED):
            return  # the row was not decoded
        name = self._unchecked.pop(row["task"])
        if error is not None:
            raise ScoreError(error.removeprefix(_FAILED), hint="nothing else was decoded; correct the scorer first")
        if row["score"] is None:
            self._warn(f"warning: the scorer {name!r} returned None for problem {row['problem']}, which is not a score")
