"""The +2 / -1 rule: by hand, row by row, and compared with the best fixed length."""

from __future__ import annotations

import numpy as np
import pytest

from pardec.samplers.speculative.length.heuristic import Heuristic
from tests.samplers.fake_draft_model import best_fixed, context, outcome, speed, switching, written


def test_each_row_follows_its_own_drafts() -> None:
    stage = context(written([[1], [2], [3]]))
    controller = Heuristic(first=3)
    state = controller.start(stage)
    assert controller.budget(6, stage, state).tolist() == [3, 3, 3]
    controller.observe(outcome([3, 3, 0], [3, 1, 0]), stage, state)
    assert controller.budget(6, stage, state).tolist() == [5, 2, 3]  # nothing drafted says nothing
    controller.observe(outcome([5, 2, 3], [5, 0, 3]), stage, state)
    assert controller.budget(6, stage, state).tolist() == [6, 1, 5]  # 7 is cut to the drafter's 6
    controller.observe(outcome([6, 1, 5], [5, 0, 4]), stage, state)
    assert controller.budget(6, stage, state).tolist() == [5, 1, 4]  # from 6, not from 7; never below 1


@pytest.mark.parametrize(("c", "least"), [(0.05, 0.93), (0.2, 0.93), (0.5, 0.69)])
def test_it_is_not_far_from_the_best_fixed_length(c: float, least: float) -> None:
    for alphas in ((0.9, 0.3, 0.8, 0.1), (0.9,), (0.2,)):
        uniform = switching(alphas, 600 // len(alphas), 10)
        assert speed(Heuristic(), uniform, c, 10) >= least * best_fixed(uniform, c, 10)


def test_it_beats_every_fixed_length_where_acceptance_changes() -> None:
    uniform = switching((0.95, 0.1) * 3, 100, 10)
    assert speed(Heuristic(), uniform, 0.2, 10) > 1.1 * best_fixed(uniform, 0.2, 10)


def test_the_first_length_is_as_given() -> None:
    assert np.array_equal(
        Heuristic(first=4).budget(9, context(written([[1]])), Heuristic(first=4).start(context(written([[1]])))), [4]
    )
