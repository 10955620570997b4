"""Scorers for problems from a file: `exact`, `number`, or a user's function.

A user's function is named `path/to/file.py:function` and called with `(problem, text)`: the `Problem`, with its
`id`, `prompt` and `answer` as the file gives it (None if it gives none), and the generated text. It returns a number in
0..1, True or False, or None where it cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pardec.models.errors import SpecError, did_you_mean

from .base import Problem
from .functions import checked, load, name_of

_FUNCTION = "a function takes (problem, text) and returns a number in 0..1"

Score = Callable[[Problem, str], float | None]


@dataclass(frozen=True)
class Scorer:
    """Rates the texts of a task.

    Attributes:
        score: the score in [0, 1] of a text for a problem, or None if the text contains no answer.
        refuses: the fault of a problem's expected answer that `score` cannot compare with, or None.
    """

    score: Score
    refuses: Callable[[Any], str | None] = lambda answer: None


def scorer(name: str | Score) -> Scorer:
    """The scorer of that name, or a user's function as a scorer.

    Raises:
        SpecError: an unknown name, or a user's function that cannot be loaded or takes other arguments.

    >>> scorer("number").score(Problem("1", "7 * 6?", "42"), "It is 42.0.")
    1.0
    """
    if not isinstance(name, str):
        if not callable(name):
            raise SpecError(f"a scorer must be a name or a function, got {type(name).__name__}", hint=_FUNCTION)
        return Scorer(checked(name, name_of(name)))
    if name in SCORERS:
        return SCORERS[name]
    if ":" in name:
        return Scorer(load(name))
    raise SpecError(
        f"unknown scorer {name!r}{did_you_mean(name, SCORERS)}",
        hint=f"scorers: {', '.join(SCORERS)}, or a function of your own, path/to/file.py:function",
    )


# --- exact ---


def normalised(text: str) -> str:
    """Text with every run of white space as one space, and none around it."""
    return " ".join(text.split())


# --- number ---

_NUMBER = re.compile(
    r"""(?<![0-9A-Za-z.])                                              # not inside a word, nor after a decimal point
        [-+]?
        (?: [0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?             # 1,234.5
          | [0-9]+(?:\.[0-9]+)?                                        # 1234.5
          | \.[0-9]+ )                                                 # .5
        (?:[eE][-+]?[0-9]{1,3}(?![0-9]))?""",
    re.VERBOSE,
)
_HASHES = re.compile(r"#{4}[ \t]*(?=[-+.0-9])")
_BOXED = re.compile(r"\\boxed\s*\{")
_CURRENCY = re.compile(r"\\?[$€£](?=[-+.0-9])")
_SPELLINGS = (("−", "-"), ("{,}", ","), ("\\,", ""), ("\\!", ""))  # a typographic minus, TeX's digit groups


def number(text: str) -> Decimal | None:
    """The number that text ends on, or None if there is none.

    A marked answer has priority: the last of `#### 42` and `\\boxed{42}`, else the last number. A box counts only if it
    holds exactly one number. Commas separate thousands only.

    >>> number("3 bags of 400 make 1,200 in all."), number("#### -4.50 (not 7)"), number("none")
    (Decimal('1200'), Decimal('-4.50'), None)
    """
    for spelling, plain in _SPELLINGS:
        text = text.replace(spelling, plain)
    text = _CURRENCY.sub("", text)
    marked: dict[int, list[str]] = {}  # position of a mark -> the numbers that it marks
    for mark in _HASHES.finditer(text):
        match = _NUMBER.match(text, mark.end())
        if match:
            marked[mark.start()] = [match[0]]
    for mark in _BOXED.finditer(text):
        inside = _braced(text, mark.end())
        if inside is not None:
            marked[mark.start()] = _NUMBER.findall(inside)
    if marked:
        (*more, last) = marked[max(marked)] or [""]
        return None if more or not last else Decimal(last.replace(",", ""))
    matches = _NUMBER.findall(text)
    return Decimal(matches[-1].replace(",", "")) if matches else None


def _braced(text: str, start: int) -> str | None:
    """The text from `start` to the closing brace; None without one."""
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[start : start + brace.start()]
    return None


# --- what is compared, and the table ---


def _by(read: Callable[[str], object], what: str) -> Scorer:
    """Scores 1.0 if `read` finds the same in text as in an accepted answer; errors call it `what`."""

    def score(problem: Problem, text: str) -> float | None:
        if problem.answer is None:
            return None
        value = read(text)
        return float(value is not None and any(read(answer) == value for answer in _accepted(problem.answer)))

    def refuses(answer: Any) -> str | None:
        if answer == [] or not all(
            isinstance(one, str | int | float) and not isinstance(one, bool) for one in _listed(answer)
        ):
            return "is neither text nor a number, nor a list of these"
        return None if all(read(one) is not None for one in _accepted(answer)) else f"holds no {what}"

    return Scorer(score, refuses)


def _listed(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def _accepted(answer: Any) -> list[str]:
    return [str(one) for one in _listed(answer)]


SCORERS: dict[str, Scorer] = {"exact": _by(normalised, "text"), "number": _by(number, "number")}
