"""The bit-by-bit comparison of two runs names the first differing operation."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from gpu_runs import repeatability
from gpu_runs.repeatability import checksum, compare, record
from gpu_runs.shapes import MASKED, model
from gpu_runs.step_profile import figures

from pardec.models.layers import layer as layer_module


def test_checksum_sees_one_bit_and_the_order() -> None:
    values = torch.randn(4, 8).bfloat16()
    other = values.clone()
    other.view(torch.int16)[2, 3] ^= 1
    assert checksum(values) == checksum(values.clone())
    assert checksum(values) != checksum(other)
    assert checksum(values) != checksum(values.flip(0))


def test_equal_runs_are_equal() -> None:
    loaded = model(MASKED, dry=True)
    first, second = (record(loaded, "sequential@dual", twice=twice)[0] for twice in (False, True))
    found = compare(first, second)
    assert (found["different"], found["vary_by_themselves"]) == (0, "none")
    assert found["checksums"] == found["steps"] * (
        1 + 2 * 9 + 2
    )  # tokens, nine operations in two layers, norm and head


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_varying_operation_is_named(by_itself: bool) -> None:
    """Attention that changes at each call varies by itself; one that changes from run to run does not."""
    loaded = model(MASKED, dry=True)
    real, calls, runs = layer_module.attend, [0], [0]

    def noisy(*arguments: object, **more: object) -> torch.Tensor:
        calls[0] += 1
        out = real(*arguments, **more)  # type: ignore[arg-type]
        return out + (calls[0] % 3 if by_itself else runs[0])

    with patch.object(layer_module, "attend", noisy):
        first, _ = record(loaded, "sequential@none", twice=False)
        runs[0] = 1
        second, _ = record(loaded, "sequential@none", twice=True)
    found = compare(first, second)
    assert found["first_operation"] == "attend"
    assert found["different"] > 0
    assert (found["vary_by_themselves"] == "none") is not by_itself
    if by_itself:
        assert set(found["vary_by_themselves"]) == {"attend"}


def test_profile_counts_launches_gaps_and_busy_time() -> None:
    events = [
        ("cudaLaunchKernel", False, 0.0, 1.0),
        ("cudaLaunchKernelExC", False, 2.0, 3.0),
        ("cudaStreamSynchronize", False, 3.0, 50.0),
        ("cudaMemcpyAsync", False, 50.0, 51.0),
        ("aten::mm", False, 0.0, 3.0),
        ("gemm", True, 10.0, 20.0),
        ("norm", True, 15.0, 25.0),
        ("gemm", True, 40.0, 45.0),
    ]
    found = figures(events, 2, 100e-6, cuda=True)
    assert (found["launches"], found["kernels"], found["waits"], found["copies"]) == (1, 1.5, 0.5, 0.5)
    assert found["busy"] == pytest.approx(0.2)
    assert found["longest_gap_ms"] == pytest.approx(0.015)
    assert found["most_ms"]["gemm"] == pytest.approx(0.0075)


def test_the_run_names_where_it_differs() -> None:
    assert repeatability._verdict({"different": 0, "checksums": 5, "steps": 2}) == "equal in 5 checksums of 2 steps"
    row = {"different": 1, "first_step": 3, "first_layer": 7, "first_operation": "glu", "vary_by_themselves": "none"}
    assert "step 3, layer 7, glu" in repeatability._verdict(row)
