"""The report's tables as HTML: readable without scripts, sortable with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ...views.document import spec
from ..notes import broken
from .columns import NOTHING, Column, Row, columns, percent, plain


def samplers(rows: Sequence[Row]) -> str:
    """The main table: one row per sampler, one sortable column per figure worth showing."""
    visible = columns(rows)
    sampler, output, failed = (
        f'<th scope="col" data-first="ascending"{kind}><button type="button">{head}</button></th>'
        for head, kind in (("Sampler", " data-text"), ("Output", " data-text"), ("Failed", ""))
    )
    heads = [sampler, output, *map(_head, visible), failed]
    lines = "\n".join(_sampler(number, row, visible) for number, row in enumerate(rows, 1))
    return scroll(
        f'<table class="sortable"><caption class="hidden">Samplers and their figures; a column heading sorts</caption>'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>\n{lines}\n</tbody></table>",
        "Samplers and their figures",
    )


def _head(column: Column) -> str:
    first = "descending" if column.better == "high" else "ascending"
    title = escape(column.meaning, quote=True)
    button = f'<button type="button" title="{title}">{escape(column.title)}</button>'
    return f'<th scope="col" data-key="{column.key}" data-first="{first}">{button}</th>'


def _sampler(number: int, row: Row, visible: Sequence[Column]) -> str:
    exact = row["exact"] is not None and row["exact"] != "relaxed"
    output = "exact" if exact else "relaxed" if row["exact"] else NOTHING
    badge = f'<span class="badge {output}">{output}</span>' if row["exact"] else NOTHING
    if broken(row):
        badge = '<span class="badge broken" title="it promises the tokens of sequential decoding">✗ not kept</span>'
    failed, total = row["failed"], row["problems"] * row["seeds"]
    error = f'<span class="error">✗ {escape(str(row["error"]))}</span>' if row["error"] else ""
    count = f"✗ {failed}" if failed else "0"
    kind = ' class="failed"' if failed else ""
    return (
        f'<tr{kind}><th scope="row" data-value="{number:05d}">{name(number, row)}{error}</th>'
        f'<td class="words" data-value="{output}">{badge}</td>{"".join(column.cell(row) for column in visible)}'
        f'<td data-value="{failed}">{count}<small>of {total}</small></td></tr>'
    )


def name(number: int, row: Row) -> str:
    """A sampler as it appears in every table and the plot: its number and its spec as requested."""
    return f'<span class="named"><span class="number">{number}</span>{spec(row["sampler"])}</span>'


def by_task(rows: Sequence[Row]) -> str:
    """One row per sampler; per task the accuracy with its interval, the lenient score if different, and forwards."""
    tasks = list(dict.fromkeys(task for row in rows for task in row["by_task"]))
    if len(tasks) < 2:
        return ""
    top = "".join(f'<th scope="col">{escape(task)}</th>' for task in tasks)
    lines = []
    for number, row in enumerate(rows, 1):
        cells = "".join(_task(row["by_task"].get(task)) for task in tasks)
        lines.append(f'<tr><th scope="row">{name(number, row)}</th>{cells}</tr>')
    return scroll(
        f'<table><caption class="hidden">Accuracy and forwards by task</caption><thead><tr><th scope="col">Sampler</th>'
        f"{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>",
        "Accuracy and forwards by task",
        "scroll wide-as-needed",
    )


def _task(figures: Row | None) -> str:
    if figures is None:
        return f"<td>{NOTHING}</td>"
    accuracy, low, high, lenient, nfe = (
        figures.get(key) for key in ("accuracy", "accuracy_low", "accuracy_high", "lenient", "nfe")
    )
    lines = [] if low is None or high is None else [f"{percent(low)} to {percent(high)}"]
    if lenient != accuracy:
        lines.append(f"lenient {NOTHING if lenient is None else percent(lenient)}")
    if nfe is not None:
        lines.append(f"{plain(nfe)} forwards")
    if figures.get("acceptance_length") is not None:
        lines.append(f"{plain(figures['acceptance_length'])} tokens per round")
    lines.append(f"{figures['problems']} problems")
    small = "".join(f"<small>{line}</small>" for line in lines)
    return f"<td>{NOTHING if accuracy is None else percent(accuracy)}{small}</td>"


def heat(title: str, heads: Sequence[str], lines: Iterable[tuple[str, Sequence[tuple[float, str] | None]]]) -> str:
    """Shares from 0 to 1 as coloured cells with the percentage.

    Args:
        title: the title for screen readers.
        heads: the headings of the columns.
        lines: the heading of each row, as HTML, and its cells: share and tooltip, or None.
    """
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(f'<tr><th scope="row">{head}</th>{"".join(map(_heat_cell, cells))}</tr>' for head, cells in lines)
    return scroll(
        f'<table class="heat"><caption class="hidden">{escape(title)}</caption><thead><tr><th scope="col">Sampler</th>'
        f"{top}</tr></thead><tbody>{body}</tbody></table>",
        title,
    )


def _heat_cell(cell: tuple[float, str] | None) -> str:
    if cell is None:
        return "<td></td>"
    share, title = cell
    return f'<td class="warm-{round(min(max(share, 0), 1) * 31)}" title="{escape(title)}">{round(100 * share)}</td>'


def definitions(values: Mapping[str, Any]) -> str:
    """Names and values as a description list."""
    return _list((escape(str(key)), escape(_value(value))) for key, value in values.items())


def specs(resolved: Mapping[str, str]) -> str:
    """Samplers as requested and as resolved."""
    return _list((spec(sampler), spec(resolved_spec)) for sampler, resolved_spec in resolved.items())


def _list(items: Iterable[tuple[str, str]]) -> str:
    return '<dl class="facts">' + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in items) + "</dl>"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or NOTHING
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(item)}" for key, item in value.items()) or NOTHING
    return NOTHING if value is None else "yes" if value is True else "no" if value is False else str(value)


def scroll(table: str, title: str, kind: str = "scroll") -> str:
    """A box in which a wide table scrolls, also with the keyboard."""
    return f'<div class="{kind}" role="region" aria-label="{escape(title)}" tabindex="0">{table}</div>'
