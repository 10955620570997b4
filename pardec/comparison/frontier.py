"""The Pareto frontier: what is worth choosing when one figure is weighed against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pardec.models.errors import SpecError, did_you_mean

from .report.columns import COLUMNS

# The figures that are better when they are larger; all others cost.
GAINS = {column.key for column in COLUMNS if column.better == "high"}


def frontier(rows: Sequence[Mapping[str, Any]], cost: str, quality: str) -> list[dict[str, Any]]:
    """The rows that no other row equals or beats in both figures and beats in one, cheapest first.

    A figure such as tokens per second counts as a cost the better the larger it is. Of rows that are equal in both, all
    stay. Rows without one of the figures are left out. Raises SpecError for a column that is no figure.
    """
    for name in (cost, quality):
        known = [key for key, value in rows[0].items() if not isinstance(value, str | dict | list)] if rows else []
        if rows and name not in known:
            raise SpecError(f"{name!r} is no figure{did_you_mean(name, known)}", hint=f"figures: {', '.join(known)}")
    ahead = {name: 1 if name in GAINS else -1 for name in (cost, quality)}
    points = [
        (ahead[cost] * row[cost], ahead[quality] * row[quality], row)
        for row in rows
        if row[cost] is not None and row[quality] is not None
    ]
    best = [(x, row) for x, y, row in points if not any(a >= x and b >= y and (a > x or b > y) for a, b, _ in points)]
    return [dict(row) for _, row in sorted(best, key=lambda point: -point[0])]
