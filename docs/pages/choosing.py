"""The rows of committed tables that the page on choosing a sampler includes."""

from __future__ import annotations

from collections.abc import Sequence

from pages import figures
from pages.benchmarks import Row, Table
from pages.figures import Point
from pages.text import table

MASKED = (
    "sequential", "oracle", "threshold:tau=0.98", "threshold:tau=0.9", "threshold:tau=0.7", "fixed:steps=64",
    "factor:f=0.5", "entropy_bound:gamma=0.1", "klass:tau=0.9", "credit+threshold:tau=0.9",
    "localleap+threshold:tau=0.9", "wino:draft=0.7", "threshold:tau=0.9@prefix", "threshold:tau=0.9@dual",
    "threshold:tau=0.9@vicinity:warmup=0", "threshold:tau=0.9@dkv",
)  # fmt: skip
CODES = ("sequential", "sjd", "sjd+lantern:k=32,delta=0.2", "sjd+gsd:dist=4", "zipar")


def snippets(measured: Sequence[Table]) -> dict[str, str]:
    """The tables that the page includes; a row that the committed tables no longer have is an error."""
    masked = next(one for one in measured if one.page == "samplers" and "right" in one.columns)
    (codes,) = (one for one in measured if one.page == "pictures")
    (vectors,) = (one for one in measured if one.page == "vectors")
    drafting = [one for one in measured if one.page == "speculation"]
    found = {
        "masked": _figure(masked)
        + _rows(masked, MASKED, ("right", "forwards", "positions per token", "above reference")),
        "ar": _tasks(drafting),
        "codes": _rows(codes, CODES, ("exact", "accuracy", "forwards", "speed-up", "deviation")),
        "vectors": _rows(vectors, [row.spec for row in vectors.rows], ("exact", "accuracy", "forwards", "speed-up")),
    }
    return {f"reference/generated/choosing-{name}.txt": text for name, text in found.items()}


def _row(one: Table, spec: str) -> Row:
    return next(row for row in one.rows if row.spec == spec)


def _rows(one: Table, specs: Sequence[str], columns: Sequence[str]) -> str:
    cells = [(f"`{spec}`", *(_row(one, spec).cells[column] for column in columns)) for spec in specs]
    return table(("spec", *columns), cells) + f"\n\nBy `{one.command}`.\n"


def _figure(one: Table) -> str:
    points = [
        Point(x, y, row.spec, row.spec in MASKED)
        for row in one.rows
        if (x := row.number("forwards")) is not None and (y := row.number("right")) is not None
    ]
    said = "*All settings of the sweep; those of the table below are in colour. Point at one for its name.*"
    return f"{figures.scatter(points, 'forwards per text', 'right, %')}\n\n{said}\n\n"


def _tasks(tables: Sequence[Table]) -> str:
    head = ("spec", *(one.heading for one in tables))
    rows = [
        (
            f"`{row.spec}`",
            *(
                f"{cells['acceptance length']} ({cells['measured speed-up']})"
                for cells in (_row(one, row.spec).cells for one in tables)
            ),
        )
        for row in tables[0].rows
    ]
    return table(head, rows) + f"\n\nBy `{tables[0].command}`.\n"
