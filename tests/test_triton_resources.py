"""The tables of kernels' resources and of a layer's launches in benchmarks/speed.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("this process interprets the kernels", allow_module_level=True)

import triton_resources  # noqa: E402

from benchmarks import launches  # noqa: E402
from tests.test_compiled_kernels import SPILLED, written  # noqa: E402


def table(name: str) -> list[list[str]]:
    """The cells of a table of the page, without its head."""
    text = triton_resources.PAGE.read_text(encoding="utf-8")
    lines = text.partition(f"<!-- {name} -->")[2].partition("<!--")[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_kernel_has_a_row_that_fits_a_processor() -> None:
    rows = table("resources of kernels")
    assert {row[1] for row in rows} == {name.rpartition(":")[2].strip("_") for name in written()}
    assert {row[0] for row in rows} == set(triton_resources.CASES)
    for row in rows:
        registers, spilled, shared, held = float(row[4]), float(row[5]), float(row[6]), int(row[7])
        assert registers <= 255
        assert spilled <= SPILLED
        assert shared <= 227
        assert held >= 1


def test_the_table_of_launches_is_up_to_date() -> None:
    found = launches.markdown(launches.COLUMNS, launches.bench()).strip().splitlines()[2:]
    assert table("launches of a layer") == [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_a_table_replaces_the_one_between_its_marks() -> None:
    page = "a\n<!-- x -->\n\nold\n\n<!-- end of x -->\nb"
    assert triton_resources.written(page, "x", "new\n") == "a\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nb"
    with pytest.raises(AssertionError, match="speed.md has no"):
        triton_resources.written(page, "y", "new")
