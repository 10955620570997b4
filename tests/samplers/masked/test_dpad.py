"""`dpad`: a mask after the block is kept with a probability that falls with its distance, drawn once per block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.reference import naive_query as naive
from tests.samplers.query_parity import agree, queried
from tests.samplers.toys import fill, prompts, toy


class Constant:
    """A source that returns the same number always."""

    def __init__(self, value: float) -> None:
        self.value = value

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        return torch.full(positions.shape, self.value, dtype=torch.float64)


# 2 N(d / 2; 0, 1) for d = 0, 1, ...: 0.798, 0.704, 0.484, 0.259, 0.108, 0.0351, 0.0089, 0.0017; the window ends.
KEPT = [(0.9, 0), (0.75, 1), (0.5, 2), (0.3, 3), (0.2, 4), (0.1, 5), (0.03, 6), (0.005, 7), (0.0001, 8)]


def a_mask_is_kept_with_the_density_of_its_distance(uniform: float, stay: int) -> None:
    got = fill(toy(), "dpad:k=4,scale=2,window=8+sequential", prompts((3,)), 16, source=Constant(uniform))
    assert queried(got)[0] == tuple(range(3 + 4 + stay))


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.seeds("arXiv:2508.14148")
def test_it_is_the_naive_rule_step_by_step(name: str) -> None:
    for uniform, stay in KEPT:
        a_mask_is_kept_with_the_density_of_its_distance(uniform, stay)
    each_row_draws_anew_for_each_block()
    agree(name, "dpad:k=2.5,scale=2,window=9", naive.dpad(2.5, 2, 9, 100))


class Drawn:
    """A source whose numbers keep every mask in the window of row 0's first block and of row 1's second, else none."""

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        keeps = torch.from_numpy((step - 3) // 4 == rows)[:, None]  # blocks begin at 3, 7, 11 and 15
        return torch.where(keeps, 0.0, 0.99).expand(positions.shape).double()


def each_row_draws_anew_for_each_block() -> None:
    got = fill(toy(), "dpad:k=4,scale=2,window=8+sequential", prompts((3, 3)), 16, source=Drawn())
    for row, ends in enumerate(((7 + 8, 11, 15, 19), (7, 11 + 8, 15, 19))):
        assert queried(got, row) == [tuple(range(end)) for end in ends for _ in range(4)]
