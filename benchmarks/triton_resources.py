"""Writes the tables of the Triton kernels' resources and of a layer's launches into benchmarks/speed.md.

    python benchmarks/triton_resources.py

No GPU is needed: each kernel is compiled for an H100 or H200 (sm_90) with what its wrapper would launch at LLaDA-8B's
and Qwen3-8B's shapes, and the assembler says what it takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import triton

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import launches  # noqa: E402
from pardec.bench.report import Column, markdown  # noqa: E402
from tests import test_compiled_kernels as compiled  # noqa: E402

PAGE = ROOT / "benchmarks" / "speed.md"
ARCHITECTURE, PROCESSORS = 90, 132
_REGISTERS, _SHARED, _WARPS = 1 << 16, 227 << 10, 64  # limits of one multiprocessor
_BRAIN = torch.bfloat16

CASES: dict[str, Callable[[], object]] = {
    "attention, 32 queries of 480, 32 key heads": partial(compiled.attention, "bidirectional", slots=480, batch=1),
    "attention, 32 queries of 480, 8 key heads": partial(compiled.attention, "bidirectional", slots=480, kv=8, batch=1),
    "attention, 1 query of 480, 8 key heads": partial(
        compiled.attention, "causal", slots=480, kv=8, batch=1, queries=1
    ),
    "attention, 480 queries": partial(compiled.attention, "bidirectional", slots=480, batch=1, queries=480),
    "attention, 480 causal queries": partial(compiled.attention, "causal", slots=480, batch=1, queries=480),
    "attention, tree of 32 nodes": partial(compiled.attention, "tree", slots=480, batch=1),
    "rotary and cache, 32 queries": partial(compiled.turn, _BRAIN, 128),
    "SwiGLU, 32 rows": partial(compiled.gate, _BRAIN, 12288),
    "residual sum and norm, 480 rows": partial(compiled.sums, _BRAIN, 4096),
    "confidence, 1 row": partial(compiled.statistics, _BRAIN, count=1),
    "confidence, 32 rows": partial(compiled.statistics, _BRAIN),
    "confidence and draw, 32 rows": partial(compiled.draws, _BRAIN, temperature=0.7),
    "verdict on a chain of 6": partial(compiled.chain, 6, laws=True),
    "sums over 100 neighbours": partial(compiled.neighbours, torch.float32, 100),
}


def rows() -> list[dict[str, Any]]:
    """One row per launch."""
    return [
        {"case": name, **figures(launch)}
        for name, run in CASES.items()
        for launch in compiled.launched(run, ARCHITECTURE)
    ]


def figures(launch: compiled.Launch) -> dict[str, Any]:
    """The resources of a launch, and how many of its programs run on one multiprocessor at once."""
    warps, shared = launch.compiled.metadata.num_warps, launch.compiled.metadata.shared
    allocated = -(-launch.registers // 8) * 8  # registers are given in eights
    held = min(_REGISTERS // (32 * warps * allocated), _WARPS // warps, 32)
    held = min(held, _SHARED // (shared + 1024))
    programs = prod(launch.grid)
    return {
        "kernel": launch.kernel.rpartition(":")[2].strip("_"),
        "programs": programs,
        "warps": warps,
        "registers": launch.registers,
        "spilled": launch.spilled,
        "shared": shared,
        "held": held,
        "waves": programs / (PROCESSORS * held),
    }


COLUMNS: tuple[Column, ...] = (
    ("launch", lambda row: row["case"]),
    ("kernel", lambda row: row["kernel"]),
    ("programs", lambda row: str(row["programs"])),
    ("warps", lambda row: str(row["warps"])),
    ("registers", lambda row: str(row["registers"])),
    ("spilled bytes", lambda row: str(row["spilled"])),
    ("shared KiB", lambda row: f"{row['shared'] / 1024:.1f}"),
    ("programs per processor", lambda row: str(row["held"])),
    ("waves", lambda row: f"{row['waves']:.2f}"),
)


def written(text: str, name: str, table: str) -> str:
    """The page with the table between its two marks."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"{PAGE.name} has no {begin.strip()}"
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    text = written(text, "launches of a layer", launches.table())
    text = written(text, "resources of kernels", markdown(COLUMNS, rows()))
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE} (Triton {triton.__version__})")


if __name__ == "__main__":
    main()
