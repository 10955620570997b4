"""The committed benchmarks of one method: a figure, the rows that name it, and the command that made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pages import figures
from pages.benchmarks import Row, Table
from pages.figures import Point
from pages.text import table
from pardec.samplers.measured import Measured, of_method


def section(card: Any, tables: Sequence[Table]) -> str:
    """The section of one method: its verdict, and every benchmark page whose tables name it."""
    found = [_verdict(row) for row in of_method(card.name, card.family)]
    for page in dict.fromkeys(one.page for one in tables):
        of = [(one, [row for row in one.rows if card.name in row.names]) for one in tables if one.page == page]
        chosen = [(one, rows) for one, rows in of if rows]
        if chosen:
            found.append(_quote(card.name, chosen))
    return "\n\n".join(found)


def _verdict(row: Measured) -> str:
    verdict, _, rest = str(row).partition(": ")
    return f"**{verdict}**: {rest}. [Every method, and what the words mean](../../benchmarks/pages/methods.md)."


def _quote(name: str, chosen: Sequence[tuple[Table, Sequence[Row]]]) -> str:
    first, _ = chosen[0]
    link = f"[The whole page](../../benchmarks/pages/{first.page}.md) is made by `{first.command}`."
    swept = [(one, rows) for one, rows in chosen if "AUP" in one.columns]
    settings = [(one, rows) for one, rows in chosen if "AUP" not in one.columns]
    return "\n\n".join([f"### {first.title}", *_figure(name, settings[:1] or chosen), _table(swept or chosen), link])


def _table(chosen: Sequence[tuple[Table, Sequence[Row]]]) -> str:
    """A table of the rows, the baseline first; with a heading if there are several tables."""
    first, _ = chosen[0]
    named = any(one.heading for one, _ in chosen)
    shown = [
        (*([one.heading] if named else []), f"`{row.spec}`", *(row.cells[column] for column in one.columns))
        for one, rows in chosen
        for row in (*(row for row in one.rows[:1] if row not in rows), *rows)
    ]
    return table((*(["task"] if named else []), "spec", *first.columns), shown)


def _figure(name: str, chosen: Sequence[tuple[Table, Sequence[Row]]]) -> list[str]:
    first, rows = chosen[0]
    quality = next((name for name in ("accuracy", "exact", "right") if rows[0].number(name) is not None), None)
    if quality and "forwards" in first.columns:
        points = [
            Point(x, y, row.spec, name in row.names)
            for row in first.rows
            if (x := row.number("forwards")) is not None and (y := row.number(quality)) is not None
        ]
        unit = "text" if first.family == "masked" else "image"
        said = f"Each point is a sampler of the whole table; those with `{name}` are in colour."
        return [figures.scatter(points, f"forwards per {unit}", "right, %"), said]
    if "acceptance length" in first.columns:
        bars = [
            (f"{row.spec}, {one.heading}", length)
            for one, rows in chosen
            for row in rows
            if (length := row.number("acceptance length")) is not None
        ]
        return [figures.bars(bars, "tokens per forward of the target (acceptance length)")]
    return []
