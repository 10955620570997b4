"""What each method gains or costs on the embedded models: the rows of `measured.json`, and the verdict they give.

`benchmarks/methods.py` measures the rows; `benchmarks/methods.md` is their page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
NOT_MEASURED = "not measured"
MARGIN = 0.02  # seconds that differ by a smaller share count as equal
ENOUGH = 30  # problems: if none of them differs, at most a tenth of all problems does (95%)

Interval = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True, slots=True)
class Measured:
    """One method on one task of an embedded model, against `plain`: the same decoding without the method.

    Attributes:
        spec: the sampler with the method; None if no embedded model or module runs it.
        problems: how many were decoded; 0 if none was, and no figure is given.
        right, plain_right: the shares of problems answered exactly.
        quality: their difference, method less plain.
        forwards, positions, seconds: of the method, in those of `plain`: sums over the problems.
        per_problem: mean forwards, the draft model's forwards, and positions of the method.
        needs: what a gain would need that these models or this machine lack; "" if nothing is known.
        reason: why it loses or cannot gain here, in one clause.
    """

    name: str
    family: str
    model: str
    task: str
    plain: str
    spec: str | None = None
    problems: int = 0
    arguments: Mapping[str, Any] | None = None
    right: float = 0.0
    plain_right: float = 0.0
    quality: Interval = (0.0, 0.0, 0.0)
    forwards: Interval = (1.0, 1.0, 1.0)
    positions: Interval = (1.0, 1.0, 1.0)
    seconds: Interval = (1.0, 1.0, 1.0)
    per_problem: tuple[float, float, float] = (0.0, 0.0, 0.0)
    needs: str = ""
    reason: str = ""

    @property
    def shown(self) -> str:
        """What the intervals show: "gains", "faster", "level" or "loses".

        It loses if quality falls, or if it takes longer without better quality; it gains if it takes less time, or has
        better quality in no more time. Each holds only if it holds in the whole interval. What takes less time on fewer
        than `ENOUGH` problems is faster, and its quality is open.
        """
        worse, better = self.quality[2] < 0, self.quality[1] > 0
        slower, faster = self.seconds[1] > 1 + MARGIN, self.seconds[2] < 1 - MARGIN
        if worse or (slower and not better):
            return "loses"
        if better and self.seconds[2] <= 1 + MARGIN:
            return "gains"
        return "level" if not faster else "gains" if self.problems >= ENOUGH else "faster"

    @property
    def verdict(self) -> str:
        """`shown`; for a method that does not gain here, "needs ..." if the condition for a gain is known."""
        if self.needs and not (self.problems and self.shown in ("gains", "faster")):
            return f"needs {self.needs}"
        return self.shown if self.problems else NOT_MEASURED

    def __str__(self) -> str:
        if not self.problems:
            return f"{self.verdict}: {self.reason}" if self.reason else self.verdict
        figures = (
            "{:.2f} ({:.2f}..{:.2f}) times the seconds of ".format(*self.seconds)
            + f"`{self.plain}` on {self.task} with {self.model}, "
            + f"{self.right:.0%} right in place of {self.plain_right:.0%}"
        )
        return f"{self.verdict}: {figures}" + (f"; {self.reason}" if self.reason else "")


@cache
def rows() -> tuple[Measured, ...]:
    """Every row, in the order of the registry; a method may have further ones, for other models, after its first."""
    return tuple(row(values) for values in json.loads(FILE.read_text(encoding="utf-8"))["rows"])


def row(values: Mapping[str, Any]) -> Measured:
    """A row of the file."""
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Measured(**given)


def of_method(name: str, family: str) -> tuple[Measured, ...]:
    """The rows of a method; none for a method of another package."""
    return tuple(row for row in rows() if (row.name, row.family) == (name, family))


def verdict(name: str, family: str) -> str:
    """The verdict of a method's first row, which is for a task of its kind; "not measured" without one."""
    return next((row.verdict for row in of_method(name, family)), NOT_MEASURED)
