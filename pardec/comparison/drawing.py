"""Renders the short table for a terminal of any width, without truncating figures or names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_KEY = "#"  # heading of the numbers that replace names
_WORDS = (_KEY, "sampler", "exact")  # headings of text columns
_FRAME = 3  # width of a column besides its cells: two spaces and a line; the table has one more line

Column = Sequence[str]  # heading and cells


def render_table(
    head: Sequence[str], body: Sequence[Sequence[str]], legend: Mapping[str, str], notes: Sequence[str], width: int
) -> Iterator[RenderableType]:
    """One table with names if it fits into `width`; else numbers replace the names, in as many tables as needed."""
    from rich.text import Text

    names, *columns = zip(head, *body, strict=True)
    if _room([names, *columns]) <= width:
        yield _table([names, *columns], width)
    else:
        keys = (_KEY, *map(str, range(1, len(body) + 1)))
        for key, name in zip(keys[1:], names[1:], strict=True):
            yield Text(f"{key.rjust(len(keys[-1]))}  {name}", overflow="fold")
        for group in _split(keys, columns, width):
            yield _table([keys, *group], width)
    for note in notes:
        yield Text(f"- {note}")
    for name, meaning in legend.items():
        yield Text.assemble((name, "bold"), f": {meaning}", overflow="fold")


def _split(keys: Column, columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """Groups the columns, in order, so that each group fits beside the keys; at least one column per group."""
    group: list[Column] = []
    for column in columns:
        if group and _room([keys, *group, column]) > width:
            yield group
            group = []
        group.append(column)
    yield group


def _room(columns: Sequence[Column], least: bool = True) -> int:
    return 1 + sum(_FRAME + _width(column, least) for column in columns)


def _width(column: Column, least: bool) -> int:
    """The width of a column whose cells are never wrapped; with `least`, its heading is wrapped between words."""
    head, *cells = column
    return max(map(len, (*(head.split() if least else [head]), *cells)))


def _table(columns: Sequence[Column], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    least = _room(columns, least=False) > width
    for column in columns:
        justify: Literal["left", "right"] = "left" if column[0] in _WORDS else "right"
        table.add_column(Text(column[0]), justify=justify, width=_width(column, least))
    for line in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*map(Text, line))
    return table
