"""Commit orders and acceptance by position, averaged over problems from the rows of a run, as heat maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from .. import metrics
from . import tables
from .columns import Row

CELLS = 48  # most columns of a heat map; longer texts share columns

Mean = tuple[float, int]  # and how many problems or rounds it is over
Cell = tuple[float, str] | None  # and what stands behind it
Rows = Iterable[Mapping[str, Any]]

_ORDER = """<p>When each position of the answer was committed, mean over the problems: 0 in the first forward, 100 in
the last that the answer took. Numbers that grow from left to right mean an order close to reading.</p>"""
_LEGEND = """<p class="legend"><span>0, first forward</span> <span class="ramp painted"></span>
<span>100, last forward</span></p>"""


def commit_order(rows: Rows) -> dict[str, list[Mean]]:
    """When each position of the generated text was committed, by sampler.

    Returns:
        Of every position, counted from the first generated one: the mean over problems of its forward's place among
        the forwards up to the text's last commit, 0 the first and 1 the last; and how many problems reach it.
    """
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["error"] is not None or not row.get("steps"):
            continue
        held = found.setdefault(row["sampler"], [])
        values = _places(row["steps"])
        held.extend([] for _ in range(len(values) - len(held)))
        for position, value in enumerate(values):
            if value is not None:
                held[position].append(value)
    return {name: [(fmean(some) if some else 0.0, len(some)) for some in held] for name, held in found.items()}


def acceptance(rows: Rows) -> dict[str, list[Mean]]:
    """Of the rounds that drafted so far, the share that accepted each draft position, by sampler."""
    return _shares(rows, metrics.by_position)


def rates(rows: Rows) -> dict[str, list[Mean]]:
    """Of the drafted vectors that each forward tested, the share that it accepted, by sampler."""
    found = _shares(rows, metrics.by_forward)
    return {name: some for name, some in found.items() if any(tested for _, tested in some)}


def _shares(rows: Rows, count: Callable[[metrics.Rows], list[tuple[int, int]]]) -> dict[str, list[Mean]]:
    by_sampler: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_sampler.setdefault(row["sampler"], []).append(dict(row))
    counts = {name: count(some) for name, some in by_sampler.items()}
    return {name: [(part / max(whole, 1), whole) for part, whole in some] for name, some in counts.items() if some}


def _places(steps: Sequence[int]) -> list[float | None]:
    last = max(max(steps), 1)
    return [step / last if step >= 0 else None for step in steps]


def order_section(rows: Sequence[Row], run_rows: Sequence[Mapping[str, Any]]) -> str:
    """A heat map of all tasks, and one a task behind a choice; nothing where no row has steps."""
    asked = [row for row in run_rows if not row["reference"]]
    tasks = list(dict.fromkeys(row["task"] for row in asked))
    parts = {"all tasks": asked}
    if len(tasks) > 1:
        parts |= {task: [row for row in asked if row["task"] == task] for task in tasks}
    maps = {name: _map(f"Mean commit order, {name}", rows, commit_order(some)) for name, some in parts.items()}
    maps = {name: table for name, table in maps.items() if table}
    if not maps:
        return ""
    options = "".join(f"<option>{escape(name)}</option>" for name in maps)
    choice = f'<div class="bar"><label>Task <select data-shows="orders">{options}</select></label></div>'
    groups = "".join(
        f'<div data-name="{escape(name)}"{" hidden" if at else ""}>{table}</div>'
        for at, (name, table) in enumerate(maps.items())
    )
    return f'{_ORDER}{choice if len(maps) > 1 else ""}{_LEGEND}<div id="orders">{groups}</div>'


def rate_section(rows: Sequence[Row], run_rows: Rows) -> str:
    """A heat map of acceptance over forwards; nothing where no vectors were drafted."""
    found = rates(row for row in run_rows if not row["reference"])
    table = _map("Acceptance over forwards", rows, found, "vectors", "forward")
    caption = "Of the drafted vectors that a forward of the model tested, the share that it accepted, in percent."
    return f"<p>{caption}</p>{table}" if table else ""


def acceptance_section(rows: Sequence[Row], run_rows: Rows) -> str:
    """A heat map of acceptance by draft position; nothing where no row has it."""
    found = acceptance(row for row in run_rows if not row["reference"])
    table = _map("Acceptance by draft position", rows, found, "rounds")
    caption = "Of the rounds that drafted so many tokens, the share that accepted all of them, in percent."
    return f"<p>{caption}</p>{table}" if table else ""


def _map(
    title: str, rows: Sequence[Row], means: Mapping[str, list[Mean]], over: str = "problems", place: str = "position"
) -> str:
    if not means:
        return ""
    longest = max(map(len, means.values()))
    width = -(-longest // CELLS)
    heads = [span(start, width) for start in range(0, longest, width)]
    lines = []
    for number, row in enumerate(rows, 1):
        if row["sampler"] in means:
            cells = binned(means[row["sampler"]], width, over, place)
            lines.append((tables.name(number, row), [*cells, *[None] * (len(heads) - len(cells))]))
    return tables.heat(title, heads, lines)


def binned(means: Sequence[Mean], width: int, over: str = "problems", place: str = "position") -> list[Cell]:
    """Positions as cells of a heat map, `width` positions a cell, each weighing as many problems as it has."""
    cells: list[Cell] = []
    for start in range(0, len(means), width):
        part = means[start : start + width]
        count = sum(seen for _, seen in part)
        if count:
            mean = sum(value * seen for value, seen in part) / count
            most = max(seen for _, seen in part)
            cells.append((mean, f"{place} {span(start, width)}: {100 * mean:.1f}%, {most} {over}"))
        else:
            cells.append(None)
    return cells


def span(start: int, width: int) -> str:
    """The name of a column of `width` positions, counted from 1."""
    return str(start + 1) if width == 1 else f"{start + 1}–{start + width}"
