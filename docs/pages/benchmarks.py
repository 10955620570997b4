"""The committed benchmarks: each page unchanged, and its tables as rows that methods' pages can quote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Tables quoted on methods' pages: the family whose methods they measure, and the columns worth quoting.
QUOTED = {
    "samplers": (
        "masked",
        ("AUP", "to reference", "fed", "off", "right", "forwards", "positions per token", "above reference"),
    ),
    "speculation": ("ar", ("acceptance length", "forwards per token", "identical", "measured speed-up")),
    "real_text": ("ar", ("prompts", "acceptance length", "over transformers", "equal")),
    "pictures": ("ar", ("exact", "accuracy", "FID", "forwards", "acceptance length", "speed-up", "deviation")),
    "exact_joint": ("ar", ("5 tokens, length 4", "3 tokens, length 6")),
    "vectors": ("continuous", ("exact", "accuracy", "FID", "forwards", "accepted", "seconds", "speed-up")),
    "continuous_distributions": (
        "continuous",
        ("toy", "accepted", "largest KS", "p", "energy distance", "standard errors"),
    ),
}
_SPEC = re.compile(r"^`([^`]+)`$")
_COMMAND = re.compile(r"```bash\n(.*?)```|`((?:python|pardec|torchrun) [^`]+)`", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """One line of a table: what was measured, and its quoted columns."""

    spec: str
    cells: dict[str, str]

    @property
    def names(self) -> set[str]:
        """The methods that the spec names."""
        return {part.partition(":")[0] for part in re.split(r"[+@]", self.spec)}

    def number(self, column: str) -> float | None:
        found = re.match(r"-?[\d.]+", self.cells.get(column, ""))
        return float(found[0]) if found else None


@dataclass(frozen=True)
class Table:
    page: str
    title: str
    heading: str
    command: str
    family: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def read(folder: Path) -> list[Table]:
    """Every quoted table of the committed pages."""
    return [table for page in QUOTED for table in _tables(page, (folder / f"{page}.md").read_text(encoding="utf-8"))]


def _tables(page: str, text: str) -> list[Table]:
    family, wanted = QUOTED[page]
    found = _COMMAND.search(text)
    command = " ".join((found[1] or found[2]).replace("\\\n", " ").split()) if found else ""
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    made = []
    for block in re.finditer(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block[0].splitlines()]
        head, body = lines[0], lines[2:]
        rows = []
        for cells in body:
            spec = next((match[1] for cell in cells if (match := _SPEC.match(cell))), None)
            if spec is not None:
                rows.append(Row(spec, dict(zip(head, cells, strict=True))))
        columns = tuple(column for column in wanted if column in head)
        if rows and columns:
            headings = re.findall(r"^## (.+)$", text[: block.start()], re.MULTILINE)
            name = title[1] if title else page
            made.append(Table(page, name, headings[-1] if headings else "", command, family, columns, tuple(rows)))
    return made


def pages(folder: Path) -> dict[str, str]:
    """Each committed page, with links turned into code, since their targets lie outside the documentation."""
    found = {}
    for path in sorted(folder.glob("*.md")):
        text = re.sub(r"\[([^\]]+)\]\((?!http)([^)]+)\)", r"`\2`", path.read_text(encoding="utf-8"))
        found[f"benchmarks/pages/{path.stem}.md"] = text
    return found
