"""Problems from a file of JSON lines or text: each prompt with its accepted answers, if known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError

from ..io.prompt_files import COMPARED, Item, line_settings, read_file
from .base import Problem, Task, checked_count
from .functions import name_of
from .scorers import Score, Scorer
from .scorers import scorer as named

FORM = '"answer" is text or a number, and "answers" a list of accepted ones; a scorer of your own may read anything'


class FileTask(Task):
    """The prompts of a file as a task.

    Args:
        path: .jsonl with {"prompt": "..."} or {"messages": [...]} per line, optionally with "id", "answer" or
            "answers", or arguments of `generate` for this prompt ("max_new_tokens", "stop", "allowed",
            "response_format"); .csv with a header that names these; or text, one prompt per line.
        scorer: "exact" (white space aside), "number" (the last one in the text), "path/to/file.py:function", or a
            function of (problem, text).
        name: its name in tables; None is the file's name without its ending.

    Raises:
        SpecError: the file, a line of it (by number) or the scorer cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], scorer: str | Score = "exact", name: str | None = None) -> None:
        self.path = Path(path).resolve()
        self.scorer = _absolute(scorer) if isinstance(scorer, str) and ":" in scorer else scorer
        self.name = name or self.path.stem
        self._scorer = named(self.scorer)
        self._problems = self._read(read_file(Path(path), COMPARED), str(path))
        answered = sum(problem.answer is not None for problem in self._problems)
        self.summary = (
            f"{len(self)} prompts of {self.path.name}, {answered} with an answer, scored by {name_of(self.scorer)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return FileTask, (str(self.path), self.scorer, self.name)  # a function of a file's own cannot be pickled

    def __repr__(self) -> str:
        return f"FileTask({str(self.path)!r}, scorer={self.scorer!r}, name={self.name!r})"

    def __len__(self) -> int:
        return len(self._problems)

    def problems(self, split: str = "heldout", n: int | None = 50, seed: int = 7) -> list[Problem]:
        """The first `n` problems in the order of the file, None for all; a file has one split and needs no seed."""
        return list(self._problems if n is None else self._problems[: checked_count(self.name, n)])

    def score(self, problem: Problem, text: str) -> float | None:
        """The scorer's value in [0, 1]; None without an answer, if the scorer needs one.

        Raises:
            ScoreError: a user's function failed, or did not return a score.
        """
        return self._scorer.score(problem, text)

    def _read(self, items: list[Item], where: str) -> list[Problem]:
        by_id: dict[str, tuple[Problem, int]] = {}
        for item in items:
            answer = answer_of(item, f"{where}, line {item.line}", self._scorer, name_of(self.scorer))
            problem, line = problem_of(item, answer, f"{where}, line {item.line}"), item.line
            if problem.id in by_id:
                first = by_id[problem.id][1]
                raise SpecError(
                    f"{where}, line {line}: the id {problem.id!r} is already that of line {first}",
                    hint="give each prompt its own id, or leave all ids out to number them from 0",
                )
            by_id[problem.id] = problem, line
        return [problem for problem, _ in by_id.values()]


def problem_of(item: Item, answer: Any, where: str) -> Problem:
    """A prompt as a problem, with its own arguments of `generate`. Raises SpecError for one that cannot work."""
    if item.prompt is None:
        raise SpecError(f"{where} has no prompt", hint=FORM)
    settings = line_settings(item, where)
    return Problem(str(item.id), item.prompt, answer, settings=settings or None)


def answer_of(item: Item, where: str, rates: Scorer, called: str) -> Any:
    """The accepted answers of a prompt from its fields; None without any. Errors use `where` and `called`."""
    fields = item.fields
    if "answer" in fields and "answers" in fields:
        raise SpecError(f'{where} has both of "answer" and "answers"', hint=FORM)
    answer = fields.get("answers", fields.get("answer"))
    if answer is None:
        return None
    if "answers" in fields and (not isinstance(answer, list) or not answer):
        raise SpecError(f'{where}: "answers" is not a list of accepted answers', hint=FORM)
    reason = rates.refuses(answer)
    if reason is not None:
        raise SpecError(f"{where}: the answer {_short(answer)} {reason}, which {called} needs", hint=FORM)
    return answer


def _absolute(scorer: str) -> str:
    """The name of a scorer with an absolute path, so that it is found from any folder."""
    path, _, function = scorer.rpartition(":")
    return f"{Path(path).resolve()}:{function}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
