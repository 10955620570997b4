"""The rows of committed tables that the page on choosing a sampler includes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pages import figures
from pages.benchmarks import Row, Table
from pages.figures import Point
from pages.text import table
from pardec.cards import list_samplers
from pardec.samplers.measured import NOT_MEASURED, of_method, verdict

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
        "verdicts": verdicts(),
        "images": images(),
        "vectors": _rows(vectors, [row.spec for row in vectors.rows], ("exact", "accuracy", "forwards", "speed-up")),
    }
    return {f"reference/generated/choosing-{name}.txt": text for name, text in found.items()}


def verdicts() -> str:
    """The methods of each stage by verdict."""
    rows = []
    for (family, stage), cards in groupby(list_samplers(), key=lambda card: (card.family, card.stage)):
        found: dict[str, list[str]] = {}
        for card in cards:
            found.setdefault(verdict(card.name, family), []).append(f"`{card.name}`")
        needs = [
            f"{word.removeprefix('needs ')}: {', '.join(names)}" for word, names in found.items() if "needs" in word
        ]
        cells = (", ".join(found.get(word, [])) for word in ("gains", "faster", "level", "loses", NOT_MEASURED))
        rows.append((f"{family}, {stage}", *cells, "; ".join(needs)))
    return table(("stage", "gains", "faster", "level", "loses", NOT_MEASURED, "needs"), rows) + "\n"


def images() -> str:
    """The further rows of methods made for text, and that of `fastvar`."""
    further = [row for card in list_samplers() for row in of_method(card.name, card.family)[1:]]
    return "\n".join(f"- `{row.spec}`: {row}" for row in (*further, *of_method("fastvar", "scales"))) + "\n"


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
