"""Benchmarks in tests measure the machine once, and time each matmul once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pardec.bench import decode, floor


@pytest.fixture(autouse=True, scope="package")
def _measured_once() -> Iterator[None]:
    """The rates of float32 stand for all; `test_rates_are_plausible` measures them as a benchmark does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(floor, "_TRIALS", 1)
        measured = floor.rates(torch.device("cpu"), torch.float32, 1 << 20)
        patch.setattr(decode, "rates", lambda *_: measured)
        yield
