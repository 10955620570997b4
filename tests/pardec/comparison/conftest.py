"""A small comparison on the random model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.io.jsonl import Row, RowsFile

SPECS = ("threshold:tau=0.2+eos", "sequential@dual")
TIMED = ("seconds", "batch", "peak_memory")


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten prompts of different lengths, nine with answers."""
    file = tmp_path_factory.mktemp("prompts") / "cups.jsonl"
    lines = [{"prompt": f"{'Tom has cups. ' * (i % 3)}Ann has {i} cups.", "answer": str(i)} for i in range(9)]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"prompt": "Sara."}]))
    return file


@pytest.fixture
def small(folder: Path, prompts: Path) -> Callable[..., pardec.Table]:
    """`compare` with short settings; keyword arguments replace them."""

    def run(**arguments: Any) -> pardec.Table:
        given: dict[str, Any] = {"model": str(folder), "samplers": SPECS, "prompts": prompts, "scorer": "number"}
        given |= {"max_new_tokens": 6, "batch_size": 3, "device": "cpu", "progress": False, "chat": False}
        return pardec.compare(**given | arguments)

    return run


class Scores(list[float]):
    """Scores that are compared up to the last digit, whose rounding depends on the other rows of the batch."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and list(self) == pytest.approx(list(other), abs=1e-4)

    __hash__ = None  # type: ignore[assignment]


def untimed(out: Path) -> dict[str, Row]:
    """The rows of a run by key, without the fields that differ between runs."""
    rows = RowsFile(out / "rows.jsonl").rows
    found = {key: {name: value for name, value in row.items() if name not in TIMED} for key, row in rows.items()}
    for row in found.values():
        row["scores"] = row["scores"] and Scores(row["scores"])
    return found


def keys(out: Path) -> list[str]:
    """The keys in a run's file, in order, duplicates included."""
    return [json.loads(line)["key"] for line in (out / "rows.jsonl").read_text().splitlines()]
