"""What several commands share: words to stderr, JSON to stdout."""

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
    """A line for people, on stderr."""
    if not quiet:
        print(plain(text), file=sys.stderr, flush=True)


def show(text: str, *, end: str = "\n") -> None:
    """A result on stdout: as it is for whatever reads it, and for a terminal without what would command it."""
    print(plain(text) if sys.stdout.isatty() else text, end=end, flush=True)


def dump(value: Any) -> None:
    """One JSON document on stdout."""
    print(in_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def print_table(
    json_: bool, document: Callable[[], Any], drawable: Callable[[], Any], markdown: Callable[[], str]
) -> None:
    """A table on stdout: its JSON document, drawn by rich on a terminal, else Markdown."""
    if json_:
        dump(document())
    elif sys.stdout.isatty():
        from rich import print as rich_print

        rich_print(drawable())
    else:
        show(markdown(), end="")


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as aligned columns; the last is left as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
