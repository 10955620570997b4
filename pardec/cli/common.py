"""Output of all commands: messages on stderr, text, JSON and tables on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from pardec.models.printable import in_json, plain

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def say(text: str, *, quiet: bool = False) -> None:
    """Prints a message on stderr."""
    if not quiet:
        print(plain(text), file=sys.stderr, flush=True)


def show(text: str, *, end: str = "\n") -> None:
    """Prints a result on stdout, for a terminal without control characters."""
    print(plain(text) if sys.stdout.isatty() else text, end=end, flush=True)


def dump(value: Any) -> None:
    """Prints one JSON document on stdout."""
    print(in_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def print_table(
    json_: bool, document: Callable[[], Any], renderable: Callable[[], Any], markdown: Callable[[], str]
) -> None:
    """Prints a table: as JSON, by rich on a terminal, or as Markdown."""
    if json_:
        dump(document())
    elif sys.stdout.isatty():
        from rich import print as rich_print

        rich_print(renderable())
    else:
        show(markdown(), end="")


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as aligned columns; the last column is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
