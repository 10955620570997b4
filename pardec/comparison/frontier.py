"""The Pareto frontier of a table in two of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pardec.models.errors import SpecError, did_you_mean

from .report.columns import COLUMNS

# The figures that are better when they are larger; for all others, smaller is better.
GAINS = {column.key for column in COLUMNS if column.better == "high"}


def frontier(rows: Sequence[Mapping[str, Any]], cost: str, quality: str) -> list[dict[str, Any]]:
    """The rows that no other row dominates (at least as good in both figures and better in one), cheapest first.

    A figure such as tokens per second may be the cost: larger is better then. Rows that are equal in both figures are
    all included; rows that lack one of them are left out. Raises SpecError for a column without numbers.
    """
    for name in (cost, quality):
        figures = [key for key, value in rows[0].items() if not isinstance(value, str | dict | list)] if rows else []
        if rows and name not in figures:
            raise SpecError(
                f"no column {name!r} has numbers{did_you_mean(name, figures)}",
                hint=f"such columns: {', '.join(figures)}",
            )
    sign = {name: 1 if name in GAINS else -1 for name in (cost, quality)}
    points = [
        (sign[cost] * row[cost], sign[quality] * row[quality], row)
        for row in rows
        if row[cost] is not None and row[quality] is not None
    ]
    best = [(x, row) for x, y, row in points if not any(a >= x and b >= y and (a > x or b > y) for a, b, _ in points)]
    return [dict(row) for _, row in sorted(best, key=lambda point: -point[0])]
