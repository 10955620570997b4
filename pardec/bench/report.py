"""The output of benchmarks: one JSON document with machine, versions and command, and tables of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..environment import machine, versions
from ..io.saving import write_file

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def document(command: Sequence[str], rows: Sequence[Row], settings: Row) -> Row:
    """The rows of a run as JSON values, with everything needed to repeat it."""
    head = {"command": shlex.join(["pardec", *command]), "settings": settings}
    return {**head, "machine": machine(), "versions": versions(), "rows": list(rows)}


def write(content: Row, file: Path) -> None:
    """Writes the document of a run."""
    write_file(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:.1f}"


def _mb(count: float | None) -> str:
    return "" if count is None else f"{count / 2**20:.1f}"


def _beside(row: Row) -> str:
    return ", ".join(
        f"{name} {other['speed_up']:.2f}x ({other['speed_up_min']:.2f} to {other['speed_up_max']:.2f})"
        for name, other in row["beside"].items()
    )


def _replayed(row: Row) -> str:
    ran = {"forwards": row.get("forwards"), "whole steps": row.get("whole_steps")}
    each = {name: counts for name, counts in ran.items() if counts}
    return ", ".join(f"{each[name].get('replayed', 0) / sum(each[name].values()):.0%} of {name}" for name in each)


def _per_step(row: Row) -> str:
    """Transfers and graph replays of a step; nothing on a CPU, where there are none."""
    found = {name: count for name, count in (row.get("per_step") or {}).items() if count}
    return ", ".join(f"{count:.3g} {name.replace('_', ' ')}" for name, count in found.items())


def _repeats(row: Row) -> str:
    found = row.get("repeats")
    if not found:
        return ""
    return "yes" if not found["different"] else f"no, step {found['first_step']}, layer {found['first_layer']}"


def _part(name: str) -> Callable[[Row], str]:
    return lambda row: _ms(row["split_s"][name])


DECODE: tuple[Column, ...] = (
    ("model", lambda row: row["model"]),
    ("sampler", lambda row: f"`{row['spec']}`"),
    ("batch", lambda row: str(row["batch"])),
    ("prompt + new", lambda row: f"{row['context']} + {row['new']}"),
    ("steps", lambda row: str(row["steps"])),
    ("ms per step", lambda row: _ms(row["step_s"])),
    *((name, _part(name)) for name in ("backbone", "head", "draft", "decision", "host")),
    ("decision + host", lambda row: f"{row['decision_and_host']:.0%}"),
    ("floor", lambda row: "" if row["floor"] is None else _ms(row["floor"]["step_s"])),
    ("time / floor", lambda row: "" if row["over_floor"] is None else f"{row['over_floor']:.2f}x"),
    ("fair bound", lambda row: _ms(row.get("fair_s"))),
    ("time / fair", lambda row: "" if row.get("over_fair") is None else f"{row['over_fair']:.2f}x"),
    ("repeats", _repeats),
    ("logits apart", lambda row: "" if not row.get("logits") else f"{row['logits']['furthest']:.1e}"),
    ("time / predicted", lambda row: "" if row["over_predicted"] is None else f"{row['over_predicted']:.2f}x"),
    ("positions", lambda row: str(row["tokens_fed"])),
    ("peak MiB", lambda row: _mb(row["peak_bytes"])),
    ("CUDA graphs", _replayed),
    ("per step", _per_step),
    ("other loops / pardec", _beside),
)
MEMORY: tuple[Column, ...] = (
    ("model", lambda row: row["model"]),
    ("batch", lambda row: str(row["batch"])),
    ("new", lambda row: str(row["new"])),
    ("vocabulary", lambda row: str(row["vocabulary"])),
    ("all logits MiB", lambda row: _mb(row["logits_bytes"])),
    ("peak MiB", lambda row: _mb(row["peak_bytes"])),
)
KERNELS: tuple[Column, ...] = (
    ("kernel", lambda row: row["kernel"]),
    ("shape", lambda row: row["shape"]),
    ("dtype", lambda row: row["dtype"]),
    ("reference µs", lambda row: _us(row["reference_s"])),
    ("Triton µs", lambda row: _us(row["triton_s"])),
    ("C µs", lambda row: _us(row["c_s"])),
    ("floor µs", lambda row: _us(row["floor_s"])),
    ("largest error", lambda row: "" if row["furthest"] is None else f"{row['furthest']:.1e}"),
)


def markdown(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """The rows as a table; columns that are empty throughout are left out."""
    table = [[show(row) for row in rows] for _, show in columns]
    filled = [(name, cells) for (name, _), cells in zip(columns, table, strict=True) if any(cells)]
    lines = [f"| {' | '.join(name for name, _ in filled)} |", "|---" * len(filled) + "|"]
    lines += [f"| {' | '.join(cells)} |" for cells in zip(*(cells for _, cells in filled), strict=True)]
    return "\n".join(lines) + "\n"


def line(columns: Sequence[Column], row: Row) -> str:
    """A row in one line, to show progress."""
    cells = ((name, show(row)) for name, show in columns)
    return "; ".join(f"{name} {cell}" for name, cell in cells if cell)


def render_table(columns: Sequence[Column], rows: Sequence[Row]) -> Any:
    """The rows as a table of rich, for a terminal."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name, _ in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(show(row).replace("`", "") for _, show in columns))
    return table
