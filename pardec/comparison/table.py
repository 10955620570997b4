"""The table of a comparison: one row per sampler with all its figures, in several formats."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.printable import in_json, plain

from ..io.arrays import frame
from ..io.jsonl import Row
from ..io.output_paths import check_figure
from . import curve_table as curve_text
from . import metrics
from .curve_table import curve_table
from .figure import figure, frontier
from .notes import broken, notes
from .report.columns import MEANINGS
from .run import Run

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

PathLike = str | Path | None

# The fields of a row, in the order of the CSV columns; the last two are spread over several columns there.
FIELDS = (
    "sampler", "spec", "exact", "problems", "seeds", "failed", "error", "cut", "accuracy", "accuracy_low",
    "accuracy_high", "lenient", *metrics.FIGURES, "tokens_per_second", "tokens_per_second_low",
    "tokens_per_second_high", "seconds_per_forward", "speed_up", "cost_ratio", "simulated_speed_up", "floor_share",
    "agreement", "identical", "mismatches", "ties", "acceptance_by_position", "by_task",
)  # fmt: skip


class Table:
    """The results of a run.

    Attributes:
        run: the run.
        rows: one dict per requested sampler, in that order, with the fields of `FIELDS`.
        curves: the curves of each task, of a run that swept its samplers; see `curve_table`.
        notes: remarks on the figures: missing references, failures, speeds of several machines.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        by_sampler: dict[str, list[Row]] = {}
        for row in run.rows:
            by_sampler.setdefault(row["sampler"], []).append(row)
        self._device = metrics.device(run.rows)
        self._scored = {metrics.problem_key(row) for row in metrics.successful(run.rows) if row["score"] is not None}
        entries = [entry for entry in run.config["samplers"] if not entry["reference"]]
        self.rows = [self._row(entry, by_sampler) for entry in entries]
        first = self.rows[0]["tokens_per_second"] if self.rows else None
        for row in self.rows:
            row["speed_up"] = row["tokens_per_second"] / first if first and row["tokens_per_second"] else None
        self.curves = curve_table(run)
        self.notes = [*run.config["notes"], *notes(self.rows, run, self._device)]

    def _row(self, entry: Mapping[str, Any], by_sampler: Mapping[str, list[Row]]) -> dict[str, Any]:
        rows = by_sampler.get(entry["sampler"], [])
        references = {role: by_sampler.get(entry[role] or "") for role in ("floor", "baseline")}
        finished = metrics.successful(rows)
        errors = Counter(row["error"] for row in rows if row["error"] is not None)
        row: dict[str, Any] = {
            "sampler": entry["sampler"],
            "spec": finished[0]["spec"] if finished else entry["spec"],
            "exact": finished[0]["exact"] if finished else entry["exact"],
            "problems": len({metrics.problem_key(row) for row in rows}),
            "seeds": len({row["seed"] for row in rows}),
            "failed": errors.total(),
            "error": errors.most_common(1)[0][0] if errors else None,
            "cut": sum(bool(row.get("cut")) for row in finished) if finished else None,
            **metrics.quality(rows, self._scored),
            **{name: figure(rows) for name, figure in metrics.FIGURES.items()},
            **metrics.speed(rows, self._device),
            "speed_up": None,
            "floor_share": metrics.floor_share(rows, references["floor"]),
            **metrics.simulated(rows, self.run.config.get("cost_ratio")),
            **metrics.agreement(rows, references["baseline"]),
            **metrics.mismatches(rows, references["baseline"]),
            "acceptance_by_position": [accepted / drafted for accepted, drafted in metrics.by_position(rows)] or None,
            "by_task": {task["name"]: self._of_task(rows, task["name"]) for task in self.run.config["tasks"]},
        }
        return {name: row[name] for name in FIELDS}

    def _of_task(self, rows: Sequence[Row], task: str) -> dict[str, Any]:
        task_rows = [row for row in rows if row["task"] == task]
        quality = metrics.quality(task_rows, self._scored)
        accuracy = {name: quality[name] for name in ("accuracy", "accuracy_low", "accuracy_high", "lenient")}
        figures = {name: metrics.FIGURES[name](task_rows) for name in ("nfe", "acceptance_length")}
        return {**accuracy, **figures, "problems": len({metrics.problem_key(row) for row in task_rows})}

    def frontier(self, cost: str = "nfe", quality: str = "accuracy") -> list[dict[str, Any]]:
        """The rows that no other row dominates, cheapest first. Raises SpecError for a column without numbers."""
        return frontier(self.rows, cost, quality)

    # --- formats; each method returns the text, and writes it to `path` if given ---

    def to_json(self, path: PathLike = None) -> str:
        """One document: config, environment, notes, rows."""
        return _write(in_json(json.dumps(self.document(), indent=2, ensure_ascii=False)) + "\n", path)

    def to_csv(self, path: PathLike = None) -> str:
        """One line per sampler; figures of one task or draft position are in columns named FIGURE[WHICH]."""
        out = io.StringIO()
        flat = self._flat()
        writer = csv.DictWriter(out, list(flat[0]) if flat else FIELDS[:-2], lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
        return _write(out.getvalue(), path)

    def to_markdown(self, path: PathLike = None) -> str:
        """The main columns, aligned; below them the notes and the meaning of the columns."""
        lines = _markdown(self.cells())
        notes = "".join(f"\n- {_single(note).replace('<', chr(92) + '<')}" for note in self.notes)
        legend = "".join(f"\n- {head}: {meaning}" for head, meaning in self.legend().items())
        curves = "".join(map(_curves, self.curves))
        text = "\n".join(lines) + "\n" + (f"{notes}\n" if notes else "") + f"\nColumns:\n{legend}\n" + curves
        return _write(text, path)

    def to_latex(self, path: PathLike = None) -> str:
        """The main columns as a LaTeX table, for the package booktabs."""
        head, *body = ([_latex(cell) for cell in line] for line in self.cells(mark=""))
        lines = [f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", "\\toprule", *_latex_lines([head])]
        lines += ["\\midrule", *_latex_lines(body), "\\bottomrule", "\\end{tabular}"]
        return _write("\n".join(lines) + "\n", path)

    def plot(self, path: str | Path, *, cost: str = "nfe", quality: str = "accuracy", log: bool | None = None) -> Path:
        """Writes a figure of quality against cost, with intervals and the frontier, as SVG or PDF.

        Args:
            path: a file that ends in .svg or .pdf.
            cost: the column across, one with numbers.
            quality: the column upwards.
            log: a logarithmic cost; by default where it spans a factor of six.

        Raises SpecError for another kind of file, a column without numbers, or where no sampler has both.
        """
        target = check_figure(Path(path))
        drawing = figure(self.rows, cost, quality, log)
        content = drawing.svg().encode() if target.suffix.lower() == ".svg" else drawing.pdf()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target

    def to_html(self, path: PathLike = None) -> str:
        """The main columns as an HTML table; their meanings are tooltips of the headings and listed below."""
        head, *body = self.cells(mark="")
        legend = self.legend()
        heads = [f'<th title="{html.escape(legend[cell], quote=True)}">{html.escape(cell)}</th>' for cell in head]
        lines = ["<table>", f"<thead><tr>{''.join(heads)}</tr></thead>"]
        lines += [
            "<tr>" + "".join(f'<td style="text-align: {"left" if at == 0 else "right"}">{html.escape(cell)}</td>'
            for at, cell in enumerate(line)) + "</tr>"
            for line in body
        ]  # fmt: skip
        lines += ["</table>", *(f"<p>{html.escape(plain(note))}</p>" for note in self.notes)]
        definitions = "".join(
            f"<dt>{html.escape(head)}</dt><dd>{html.escape(text)}</dd>" for head, text in legend.items()
        )
        lines.append(f"<details><summary>What the columns mean</summary><dl>{definitions}</dl></details>")
        return _write("\n".join(lines) + "\n", path)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame with the columns of `to_csv`. Raises PardecError without pandas."""
        return frame(self._flat())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table for rich; if it is too wide, it is split and numbers replace names."""
        from .drawing import render_table

        heads, *body = self.cells(mark="")
        yield from render_table(heads, body, self.legend(), [plain(note) for note in self.notes], options.max_width)
        for task in self.curves:
            yield f"\n{plain(curve_text.title(task))}"
            heads, *body = curve_text.cells(task, mark="")
            yield from render_table(heads, body, curve_text.legend(task), [], options.max_width)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return plain(self.to_markdown())

    def document(self) -> dict[str, Any]:
        """The content of `to_json` as plain values."""
        run = self.run
        document = {"config": run.config, "environment": run.environment, "notes": self.notes, "rows": self.rows}
        return document | ({"curves": self.curves} if self.curves else {})

    def legend(self) -> dict[str, str]:
        """The meanings of the visible columns of the short table, by heading."""
        return {short.head: short.meaning for short, _ in self._visible()}

    def cells(self, mark: str = "`") -> list[list[str]]:
        """The short table as text: a line of headings, then one per sampler. Empty columns are left out."""
        (names, *columns) = self._visible()
        marked = [_code_marks(cell, mark) for cell in names[1]]
        lines = zip(marked, *(cells for _, cells in columns), strict=True)
        return [[short.head for short, _ in (names, *columns)], *map(list, lines)]

    def _visible(self) -> list[tuple[_Short, list[str]]]:
        columns = [(short, [_single(short.write(row)) for row in self.rows]) for short in _SHORT]
        return [(short, cells) for short, cells in columns if any(cells)]

    def _flat(self) -> list[dict[str, Any]]:
        deepest = max((len(row["acceptance_by_position"] or ()) for row in self.rows), default=0)
        return [_flat(row, deepest) for row in self.rows]


def _markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """The lines of an aligned Markdown table; the first line of `cells` is its head."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in escaped]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _latex(text: str) -> str:
    """Text without LaTeX's own characters; an interval has a dash."""
    return "".join(_LATEX.get(char, char) for char in text).replace("..", "--")


def _latex_lines(cells: Sequence[Sequence[str]]) -> list[str]:
    return [" & ".join(line) + r" \\" for line in cells]


def _curves(task: Mapping[str, Any]) -> str:
    """The curves of a task in Markdown."""
    table = "\n".join(_markdown(curve_text.cells(task)))
    legend = "".join(f"\n- {head}: {meaning}" for head, meaning in curve_text.legend(task).items())
    return f"\n{_single(curve_text.title(task)).capitalize()}:\n\n{table}\n{legend}\n"


def _single(text: str) -> str:
    """Text as one line without control characters, safe for a terminal and a table."""
    return plain(" ".join(text.split("\n")))


def _code_marks(text: str, mark: str) -> str:
    """A name in code marks; a longer fence if the name contains a mark, as in Markdown."""
    if not mark or mark not in text:
        return f"{mark}{text}{mark}"
    fence = mark * (1 + max(map(len, re.findall(f"{re.escape(mark)}+", text))))
    return f"{fence} {text} {fence}"


def _share(row: Mapping[str, Any], name: str) -> str:
    return "" if row[name] is None else f"{100 * row[name]:.1f}%"


def _number(row: Mapping[str, Any], name: str, form: str) -> str:
    return "" if row[name] is None else format(row[name], form)


def _accuracy(row: Mapping[str, Any]) -> str:
    if row["accuracy"] is None:
        return ""
    return f"{_share(row, 'accuracy')} ({100 * row['accuracy_low']:.0f}..{100 * row['accuracy_high']:.0f})"


def _rate(row: Mapping[str, Any]) -> str:
    low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
    return "" if low is None else f"{row['tokens_per_second']:.0f} ({low:.0f}..{high:.0f})"


def _identical(row: Mapping[str, Any]) -> str:
    """The share of identical rows, for samplers that promise the baseline's tokens and all of the verify loop."""
    if row["identical"] is None or not (row["exact"] == "greedy" or row["acceptance_length"] is not None):
        return ""
    return _share(row, "identical") + (" (!)" if broken(row) else "")


def _seconds(row: Mapping[str, Any]) -> str:
    """Seconds per problem, followed in brackets by the seconds of backbone and head, or of model and refiner."""
    if row["seconds"] is None:
        return ""
    if row["transformer_seconds"] is not None or row["refiner_seconds"] is not None:
        model, refiner = (row[f"{name}_seconds"] or 0.0 for name in ("transformer", "refiner"))
        return f"{row['seconds']:.3f} ({model:.3f} + {refiner:.3f})"
    backbone, head = (
        sum(row[f"{model}{module}_seconds"] or 0.0 for model in ("", "draft_")) for module in ("backbone", "head")
    )
    return f"{row['seconds']:.2f} ({backbone:.2f} + {head:.2f})"


def _draft_forwards(row: Mapping[str, Any]) -> str:
    return f"{row['draft_forwards']:.1f}" if row["draft_forwards"] else ""


def _weighted_forwards(row: Mapping[str, Any]) -> str:
    return _number(row, "weighted_forwards", ".2f") if row["draft_forwards"] else ""


def _deviation(row: Mapping[str, Any]) -> str:
    unknown = row["exact"] == "relaxed" and (row["acceptance_length"], row["acceptance_rate"]) != (None, None)
    return "none known" if unknown and row["deviation"] is None else _number(row, "deviation", ".3f")


@dataclass(frozen=True, slots=True)
class _Short:
    """A column of the short table: its heading, the figure that it shows, and the format of a cell."""

    head: str
    figure: str
    write: Callable[[Mapping[str, Any]], str]
    more: str = ""  # added to the meaning: what is in brackets

    @property
    def meaning(self) -> str:
        return MEANINGS[self.figure] + self.more


_SHORT = (
    _Short("sampler", "sampler", lambda row: str(row["sampler"])),
    _Short("exact", "exact", lambda row: str(row["exact"])),
    _Short("accuracy", "accuracy", _accuracy),
    _Short("cut", "cut", lambda row: str(row["cut"] or "")),
    _Short("lenient", "lenient", lambda row: _share(row, "lenient") if row["lenient"] != row["accuracy"] else ""),
    _Short("FID", "distance", lambda row: _number(row, "distance", ".2f")),
    _Short("forwards", "nfe", lambda row: _number(row, "nfe", ".1f")),
    # Next to the forwards, since fewer forwards are not always faster.
    _Short("tokens/s", "tokens_per_second", _rate),
    _Short("seconds", "seconds", _seconds, "; in brackets those in backbone and head, or in the model and its refiner"),
    _Short("speed-up", "speed_up", lambda row: _number(row, "speed_up", ".2f")),
    _Short("forwards to end", "nfe_to_end", lambda row: _number(row, "nfe_to_end", ".1f")),
    _Short("tokens per forward", "tokens_per_forward", lambda row: _number(row, "tokens_per_forward", ".2f")),
    _Short("forwards per token", "forwards_per_token", lambda row: _number(row, "forwards_per_token", ".3f")),
    _Short("acceptance length", "acceptance_length", lambda row: _number(row, "acceptance_length", ".2f")),
    _Short("draft depth", "draft_depth", lambda row: _number(row, "draft_depth", ".2f")),
    _Short("accepted", "acceptance_rate", lambda row: _share(row, "acceptance_rate")),
    _Short("drafter's forwards", "draft_forwards", _draft_forwards),
    _Short("weighted forwards", "weighted_forwards", _weighted_forwards),
    _Short("positions per token", "fed_per_token", lambda row: _number(row, "fed_per_token", ".1f")),
    _Short("padding", "padding", lambda row: _share(row, "padding")),
    _Short("simulated speed-up", "simulated_speed_up", lambda row: _number(row, "simulated_speed_up", ".2f")),
    _Short("deviation", "deviation", _deviation),
    _Short("floor", "floor_share", lambda row: _share(row, "floor_share")),
    _Short("agreement", "agreement", lambda row: _share(row, "agreement")),
    _Short("identical", "identical", _identical),
    _Short("failed", "failed", lambda row: str(row["failed"] or "")),
)


def _flat(row: Mapping[str, Any], deepest: int) -> dict[str, Any]:
    tasks, shares = row["by_task"], row["acceptance_by_position"] or ()
    by_task = {f"{name}[{task}]": value for task, values in tasks.items() for name, value in values.items()}
    values = {name: row[name] for name in FIELDS[:-2]}
    acceptance = {f"acceptance[{at + 1}]": shares[at] if at < len(shares) else None for at in range(deepest)}
    return {**values, **acceptance, **(by_task if len(tasks) > 1 else {})}


def _write(text: str, path: PathLike) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
