"""`benchmarks/gpu.md`, made from the results in `benchmarks/gpu/`: one JSON file for each run of the queue.

    scripts/gpu_queue --page

Of each entry the newest run that has it is shown, with the others of that day, of which only what was measured; and of
the training all runs in the order of their steps. Figures that no run has are shown as not measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_NOTHING = "not measured"


def write(root: Path) -> Path:
    """Writes the page; returns its file."""
    file = root / "benchmarks" / "gpu.md"
    file.write_text(page(sorted((root / "benchmarks" / "gpu").glob("*.json"))), encoding="utf-8")
    return file


def page(files: Sequence[Path]) -> str:
    """The page of these results, sorted by date and name."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    runs = sorted((run for run in runs if not run.get("dry")), key=lambda run: run["date"])
    parts = [
        "# On a GPU",
        "`scripts/gpu_queue` tests, times and trains on a GPU in nine minutes; `scripts/gpu_queue --page` makes this "
        "page from the JSON files in `benchmarks/gpu/`.",
    ]
    for letter, title, make in _SECTIONS:
        run = next((run for run in reversed(runs) if letter in run["entries"]), None)
        parts.append(f"## {title}")
        if run is None:
            parts += [f"Not measured: no run of entry {letter} has been committed.", make([])]
        else:
            those = [other for other in runs if letter in other["entries"]]
            shown = [other for other in those if make is _training or other["date"] == run["date"]]
            shown.sort(key=lambda run: _first_step(run["entries"][letter].get("rows", [])))
            for other in shown:
                entry = other["entries"][letter]
                parts.append(
                    f"{_device(other)}, {other['date']}; entry {letter}, {entry['status']} in {entry['seconds']:.0f} s."
                    f"{other.get('note', '')}"
                )
                table = make(entry.get("rows", []))
                lines = table.splitlines() if len(shown) == 1 else [x for x in table.splitlines() if _NOTHING not in x]
                parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part) + "\n"


def _device(run: Row) -> str:
    machine = run["machine"]
    return f"One {machine.get('cuda:0', 'unknown device')}, torch {machine.get('torch', 'unknown')}"


def _table(columns: Sequence[tuple[str, Callable[[Row], object]]], rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(name for name, _ in columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(_cell(show(row)) for _, show in columns)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return _NOTHING
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")


def _tests(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("passed", "failed", "skipped")}
    failed = [row for row in rows if row["outcome"] == "failed"]
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + "."
    columns = (("test", lambda row: f"`{row['test']}`"), ("why", lambda row: row.get("why", "")))
    return text + ("\n\n" + _table(columns, failed) if failed else "")


def _repeatability(rows: Sequence[Row]) -> str:
    cases = [
        {"kernels": kernels, "sampler": f"sequential@{cache}"}
        for kernels in ("auto", "reference")
        for cache in ("none", "dual")
    ]
    columns = (
        ("kernels", lambda row: row["kernels"]),
        ("sampler", lambda row: f"`{row['sampler']}`"),
        (
            "checksums that differ",
            lambda row: _failed(row) or (f"{row['different']} of {row['checksums']}" if "different" in row else None),
        ),
        ("first at", _first),
        ("vary by themselves", lambda row: row.get("vary_by_themselves", "")),
    )
    return _table(columns, [_found(case, rows) for case in cases])


def _first(row: Row) -> str:
    if "first_step" not in row:
        return ""
    return f"step {row['first_step']}, layer {row['first_layer']}, {row['first_operation']}"


def _graphs(row: Row) -> str:
    if "whole" not in row or not row["cuda_graphs"]:  # whole steps are measured since November 2026
        return "yes" if row["cuda_graphs"] else "no"
    if not row["whole"] or "replayed" not in row.get("step_counts", {}):
        return "forwards"
    return "whole steps" if row.get("late", True) else "whole steps, read at once"


def _steps(rows: Sequence[Row]) -> str:
    cases: list[Row] = []
    for model, samplers, other in (
        ("llada-8b", ("sequential@none", "sequential@dual", "sequential@dkv"), "plain"),
        ("qwen3-8b", ("sequential", "lookup:k=7"), "transformers"),
    ):
        for batch in (1, 8):
            for sampler in samplers:
                common = {"model": model, "sampler": sampler, "batch": batch}
                cases += [{**common, "loop": "pardec", "cuda_graphs": graphs} for graphs in (False, True)]
                captured = cases[-1]
                others = [{**captured, "whole": True, "late": False}, {**captured, "whole": False}]
                cases += [case for case in others if _found(case, rows) is not case]  # those that were measured
                if sampler not in ("sequential@dkv", "lookup:k=7"):
                    cases.append({**common, "loop": other, "cuda_graphs": False})
    columns = (
        ("model", lambda row: row["model"]),
        ("loop", lambda row: row["loop"]),
        ("sampler", lambda row: f"`{row['sampler']}`"),
        ("batch", lambda row: row["batch"]),
        ("CUDA graphs", _graphs),
        ("ms per step", lambda row: _failed(row) or row.get("step_ms")),
        ("median ms of a step", lambda row: row.get("median_ms", "")),
        ("tokens per second", lambda row: row.get("tokens_per_second", "")),
        ("same tokens in every run", _repeats),
    )
    timed = _table(columns, [_found(case, rows) for case in cases])
    bounds = [
        {"model": model, "loop": "matmuls alone", "rows": count}
        for model in ("llada-8b", "qwen3-8b")
        for count in (1, 8, 32, 256, 480, 3840)
    ]
    columns = (
        ("model", lambda row: row["model"]),
        ("rows", lambda row: row["rows"]),
        ("ms", lambda row: _failed(row) or row.get("matmuls_ms")),
        ("Tflop/s", lambda row: row.get("tflops", "")),
        ("GB/s of weights", lambda row: row.get("gb_per_second", "")),
    )
    text = "The model's own matmuls alone, at the numbers of rows that steps have: the bound of a step."
    return f"{timed}\n\n{text}\n\n{_table(columns, [_found(case, rows) for case in bounds])}"


def _profile(rows: Sequence[Row]) -> str:
    samplers = (("llada-8b", "sequential@none"), ("llada-8b", "sequential@dual"), ("llada-8b", "sequential@dkv"))
    samplers += (("qwen3-8b", "sequential"), ("qwen3-8b", "lookup:k=7"))
    cases = [
        {"model": model, "sampler": sampler, "cuda_graphs": graphs}
        for model, sampler in samplers
        for graphs in (False, True)
    ]
    columns = (
        ("model", lambda row: row["model"]),
        ("sampler", lambda row: f"`{row['sampler']}`"),
        ("CUDA graphs", lambda row: "yes" if row["cuda_graphs"] else "no"),
        ("launches per step", lambda row: _failed(row) or row.get("launches")),
        ("kernels", lambda row: row.get("kernels", "")),
        ("waits", lambda row: row.get("waits", "")),
        ("copies", lambda row: row.get("copies", "")),
        ("GPU busy", lambda row: "" if row.get("busy") is None else f"{row['busy']:.0%}"),
        ("longest gap, ms", lambda row: row.get("longest_gap_ms", "")),
    )
    return _table(columns, [_found(case, rows) for case in cases])


def _training(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row.get("part") in ("start", "state")]
    columns = (
        ("", lambda row: row["part"]),
        ("step", lambda row: row.get("step")),
        ("validation loss", lambda row: row.get("validation")),
        ("as written", lambda row: row.get("as_written", "")),
        ("bytes", lambda row: row.get("bytes", "")),
    )
    return _table(columns, found) if found else ""


def _repeats(row: Row) -> str:
    """Whether the runs gave the same tokens; `first_equal` is missing from older results, whose `repeats` counts it."""
    if row.get("repeats") and not row.get("first_equal", True):
        return "yes, after the first"
    return {True: "yes", False: "no", None: ""}[row.get("repeats")]


def _first_step(rows: Sequence[Row]) -> int:
    """The step that a stretch of training began at."""
    return next((row["step"] for row in rows if row.get("part") == "start"), 0)


def _found(case: Row, rows: Sequence[Row]) -> Row:
    """The row of a case, or the case alone."""
    return next((row for row in rows if case.items() <= row.items()), case)


def _failed(row: Row) -> str | None:
    if "error" in row:
        return f"failed: {row['error'][:80]}"
    return f"not measured: {row['not_measured']}" if "not_measured" in row else None


def _kernels(rows: Sequence[Row]) -> str:
    columns = (
        ("kernel", lambda row: row["kernel"]),
        ("shape", lambda row: row["shape"]),
        ("ms", lambda row: _failed(row) or row.get("ms")),
        ("version before, ms", lambda row: row.get("before_ms", "")),
        ("definition, ms", lambda row: row.get("definition_ms", "")),
        ("apart from the definition", lambda row: row.get("apart", "")),
    )
    return _table(columns, rows) if rows else ""


def _rollouts(rows: Sequence[Row]) -> str:
    columns = [
        (name.replace("_s", " per second"), itemgetter(name)) for name in ("model", "sampler", "rows", "tokens_s")
    ]
    return _table(columns, [row for row in rows if "tokens_s" in row]) if rows else ""


_SECTIONS: tuple[tuple[str, str, Callable[[Sequence[Row]], str]], ...] = (
    ("a", "Tests", _tests),
    ("b", "Whether a decode repeats bit by bit", _repeatability),
    ("c", "Seconds of a step", _steps),
    ("d", "What a step launches", _profile),
    ("f", "Kernels", _kernels),
    ("h", "Rollouts", _rollouts),
    ("e", "Training", _training),
)
