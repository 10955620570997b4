"""The short table on a terminal of any width: every figure is there in full, and so is every name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_KEY = "#"  # the head of the numbers that stand for names
_WORDS = (_KEY, "sampler", "exact")  # heads of columns that hold no figures
_FRAME = 3  # what a column takes beside its cells: two spaces and a line; the table has one line more

Column = Sequence[str]  # its head, and its cells


def render_table(
    head: Sequence[str], body: Sequence[Sequence[str]], legend: Mapping[str, str], notes: Sequence[str], width: int
) -> Iterator[RenderableType]:
    """One table with the names in it, where `width` has room; else numbers for names, in as many tables as it takes."""
    from rich.text import Text

    names, *columns = zip(head, *body, strict=True)
    if _room([names, *columns]) <= width:
        yield _table([names, *columns], width)
    else:
        keys = (_KEY, *map(str, range(1, len(body) + 1)))
        for key, name in zip(keys[1:], names[1:], strict=True):
            yield Text(f"{key.rjust(len(keys[-1]))}  {name}", overflow="fold")
        for some in _parted(keys, columns, width):
            yield _table([keys, *some], width)
    for note in notes:
        yield Text(f"- {note}")
    for name, meaning in legend.items():
        yield Text.assemble((name, "bold"), f": {meaning}", overflow="fold")


def _parted(keys: Column, columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """Columns in order, as many together as there is room for beside the keys, and at least one."""
    some: list[Column] = []
    for column in columns:
        if some and _room([keys, *some, column]) > width:
            yield some
            some = []
        some.append(column)
    yield some


def _room(columns: Sequence[Column], least: bool = True) -> int:
    return 1 + sum(_FRAME + _width(column, least) for column in columns)


def _width(column: Column, least: bool) -> int:
    """Of a column whose cells are never broken; its head is broken between words where it has the least."""
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
