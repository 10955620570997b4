"""The launches of a layer on a GPU, counted without one."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from benchmarks import launches
from benchmarks.launches import Forward, Launches, of_a_layer
from pardec.bench.published import config_of
from pardec.models.families import FAMILIES
from pardec.models.plan import Visible

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize(
    ("forward", "most"),
    [
        (Forward(480, 480), 9),
        (Forward(32, 480, cached=True), 9),
        (Forward(32, 480, cached=True, captured=True), 10),
        (Forward(1, 480, cached=True), 9),
        (Forward(480, 480, cached=True), 9),
    ],
    ids=str,
)
def test_a_layer_of_llada_starts_few_kernels(forward: Forward, most: int) -> None:
    raw = config_of("llada-8b")
    spec = next(spec for spec in FAMILIES.values() if spec.matches(raw))
    found = of_a_layer(spec.decoder(raw), forward, Visible.bidirectional(), torch.bfloat16)
    assert 5 < found.total() <= most, found
    assert found["rotary"] == 1
    assert found["copy"] == 0


@pytest.mark.parametrize(
    ("forward", "most"), [(Forward(480, 480), 9), (Forward(1, 480, cached=True), 9), (Forward(1, 480, True, True), 10)]
)
def test_a_layer_with_head_norms_starts_no_more(forward: Forward, most: int) -> None:
    raw = config_of("qwen3-8b")
    spec = next(spec for spec in FAMILIES.values() if spec.matches(raw))
    found = of_a_layer(spec.decoder(raw), forward, Visible.causal(), torch.bfloat16)
    assert 5 < found.total() <= most, found


def test_views_and_reserved_memory_start_nothing_and_sums_elsewhere_copy() -> None:
    x = torch.empty(4, 8, device="meta", dtype=torch.bfloat16)
    counted = Launches()
    with counted.counting():
        y = torch.empty_like(x).view(2, 16)[:, 1:].t()
        assert not counted.counts
        y.contiguous()
        z = torch.addmm(x, x, torch.empty(8, 8, device="meta", dtype=torch.bfloat16))
        z.addmm_(x, torch.empty(8, 8, device="meta", dtype=torch.bfloat16))
        z.mul_(2)
    assert counted.counts == {"aten::contiguous": 1, "aten::addmm": 1, "copy": 1, "aten::addmm_": 1, "aten::mul_": 1}


def test_the_table_has_a_row_for_each_shape_and_forward() -> None:
    rows = launches.bench(("qwen3-8b",))
    assert [row["forward"] for row in rows] == [
        "480 queries, no cache",
        "1 query, a cache of 480",
        "1 query, a cache of 480, captured",
    ]
    assert all(str(row["launches"]) in launches.markdown(launches.COLUMNS, rows) for row in rows)
