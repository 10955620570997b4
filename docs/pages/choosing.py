"""What the page on choosing a sampler quotes: rows of the committed tables."""

from __future__ import annotations

from collections.abc import Sequence

from pages import figures
from pages.benchmarks import Row, Table
from pages.figures import Point
from pages.text import table

MASKED = (
    "sequential", "oracle", "threshold:tau=0.9", "threshold:tau=0.98", "factor", "entropy_threshold",
    "entropy_bound:gamma=0.01", "klass", "credit+threshold:tau=0.9", "threshold:tau=0.9+localleap",
    "credit+threshold:tau=0.9+localleap", "wino", "threshold:tau=0.9+remdm", "threshold:tau=0.9+edit",
    "threshold:tau=0.9+prophet", "threshold:tau=0.98@prefix", "threshold:tau=0.98@dual",
    "threshold:tau=0.98@vicinity:warmup=0",
)  # fmt: skip
CODES = ("sequential", "sjd", "sjd+lantern:k=32,delta=0.2", "sjd+gsd:dist=4", "zipar")


def snippets(measured: Sequence[Table]) -> dict[str, str]:
    """Included by the page; a row that the committed tables no longer have is an error."""
    (masked,) = (one for one in measured if one.page == "samplers")
    (codes,) = (one for one in measured if one.page == "pictures")
    (vectors,) = (one for one in measured if one.page == "vectors")
    drafting = [one for one in measured if one.page == "speculation"]
    found = {
        "masked": _figure(masked)
        + _rows(masked, MASKED, ("exact", "forwards", "positions per token", "share of the floor")),
        "ar": _tasks(drafting),
        "codes": _rows(codes, CODES, ("exact", "accuracy", "forwards", "speed-up", "deviation")),
        "vectors": _rows(vectors, [row.spec for row in vectors.rows], ("exact", "accuracy", "forwards", "speed-up")),
    }
    return {f"reference/generated/choosing-{name}.txt": text for name, text in found.items()}


def _row(one: Table, spec: str) -> Row:
    return next(row for row in one.rows if row.spec == spec)


def _rows(one: Table, specs: Sequence[str], columns: Sequence[str]) -> str:
    cells = [(f"`{spec}`", *(_row(one, spec).cells[column] for column in columns)) for spec in specs]
    names = ["right" if name == "exact" and one.page == "samplers" else name for name in columns]
    return table(("spec", *names), cells) + f"\n\nBy `{one.command}`.\n"


def _figure(one: Table) -> str:
    points = [
        Point(x, y, row.spec, row.spec in MASKED)
        for row in one.rows
        if (x := row.number("forwards")) is not None and (y := row.number("exact")) is not None
    ]
    said = "*All samplers and caches of the sweep; those of the table below are in colour. Point at one for its name.*"
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
