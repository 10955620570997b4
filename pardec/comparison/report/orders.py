"""Heat maps of commit order and acceptance by position, averaged over the problems of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from .. import metrics
from . import tables
from .columns import Row

MOST_COLUMNS = 48  # most columns of a heat map; in longer texts several positions share a column

Mean = tuple[float, int]  # value, and the number of problems or rounds that it averages
Cell = tuple[float, str] | None  # share, and its tooltip
Rows = Iterable[Mapping[str, Any]]

_ORDER = """<p>When each position of the answer was committed, mean over the problems: 0 is the first forward, 100 the
last forward of the answer. Numbers that grow from left to right mean an order close to left-to-right.</p>"""
_LEGEND = """<p class="legend"><span>0, first forward</span> <span class="ramp painted"></span>
<span>100, last forward</span></p>"""


def commit_order(rows: Rows) -> dict[str, list[Mean]]:
    """When each position of the generated text was committed, by sampler.

    Returns:
        For every position, counted from the first generated one: the mean over problems of the forward that committed
        it, scaled from 0 (first forward) to 1 (last commit of the text); and how many problems reach the position.
    """
    by_sampler: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["error"] is not None or not row.get("steps"):
            continue
        columns = by_sampler.setdefault(row["sampler"], [])
        some = _relative_steps(row["steps"])
        columns.extend([] for _ in range(len(some) - len(columns)))
        for position, value in enumerate(some):
            if value is not None:
                columns[position].append(value)
    return {
        name: [(fmean(some) if some else 0.0, len(some)) for some in columns] for name, columns in by_sampler.items()
    }


def acceptance(rows: Rows) -> dict[str, list[Mean]]:
    """For each draft position, the share of the rounds drafting that far that accepted it, by sampler."""
    return _shares(rows, metrics.by_position)


def rates(rows: Rows) -> dict[str, list[Mean]]:
    """For each forward, the share of the tested drafted vectors that it accepted, by sampler."""
    shares = _shares(rows, metrics.by_forward)
    return {name: values for name, values in shares.items() if any(tested for _, tested in values)}


def _shares(rows: Rows, count: Callable[[metrics.Rows], list[tuple[int, int]]]) -> dict[str, list[Mean]]:
    by_sampler: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_sampler.setdefault(row["sampler"], []).append(dict(row))
    counts = {name: count(some) for name, some in by_sampler.items()}
    return {name: [(part / max(whole, 1), whole) for part, whole in some] for name, some in counts.items() if some}


def _relative_steps(steps: Sequence[int]) -> list[float | None]:
    last = max(max(steps), 1)
    return [step / last if step >= 0 else None for step in steps]


def order_section(rows: Sequence[Row], run_rows: Sequence[Mapping[str, Any]]) -> str:
    """A heat map over all tasks, and one per task to choose from; empty if no row has steps."""
    sampler_rows = [row for row in run_rows if not row["reference"]]
    tasks = list(dict.fromkeys(row["task"] for row in sampler_rows))
    parts = {"all tasks": sampler_rows}
    if len(tasks) > 1:
        parts |= {task: [row for row in sampler_rows if row["task"] == task] for task in tasks}
    maps = {name: _map(f"Mean commit order, {name}", rows, commit_order(own)) for name, own in parts.items()}
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
    """A heat map of acceptance over forwards; empty if no vectors were drafted."""
    shares = rates(row for row in run_rows if not row["reference"])
    table = _map("Acceptance over forwards", rows, shares, "vectors", "forward")
    caption = "The share of the drafted vectors tested in a forward of the model that it accepted, in percent."
    return f"<p>{caption}</p>{table}" if table else ""


def acceptance_section(rows: Sequence[Row], run_rows: Rows) -> str:
    """A heat map of acceptance by draft position; empty if no row has drafts."""
    shares = acceptance(row for row in run_rows if not row["reference"])
    table = _map("Acceptance by draft position", rows, shares, "rounds")
    caption = "Of the rounds that drafted at least this many tokens, the percentage that accepted this many."
    return f"<p>{caption}</p>{table}" if table else ""


def _map(
    title: str, rows: Sequence[Row], means: Mapping[str, list[Mean]], over: str = "problems", unit: str = "position"
) -> str:
    if not means:
        return ""
    longest = max(map(len, means.values()))
    width = -(-longest // MOST_COLUMNS)
    heads = [span(start, width) for start in range(0, longest, width)]
    lines = []
    for number, row in enumerate(rows, 1):
        if row["sampler"] in means:
            cells = binned(means[row["sampler"]], width, over, unit)
            lines.append((tables.name(number, row), [*cells, *[None] * (len(heads) - len(cells))]))
    return tables.heat(title, heads, lines)


def binned(means: Sequence[Mean], width: int, over: str = "problems", unit: str = "position") -> list[Cell]:
    """Cells of a heat map with `width` positions each, weighted by the number of problems."""
    cells: list[Cell] = []
    for start in range(0, len(means), width):
        part = means[start : start + width]
        count = sum(weight for _, weight in part)
        if count:
            mean = sum(value * weight for value, weight in part) / count
            largest = max(weight for _, weight in part)
            cells.append((mean, f"{unit} {span(start, width)}: {100 * mean:.1f}%, {largest} {over}"))
        else:
            cells.append(None)
    return cells


def span(start: int, width: int) -> str:
    """The name of a column of `width` positions, counted from 1."""
    return str(start + 1) if width == 1 else f"{start + 1}–{start + width}"
