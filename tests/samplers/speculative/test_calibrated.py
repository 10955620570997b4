"""The stop at a likely rejection: what is counted, what is believed, and how it fares against fixed lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.speculative.length.calibrated import Calibrated
from pardec.samplers.speculative.length.unsure import Unsure
from tests.samplers.voices import best_fixed, context, outcome, speed, switching, written


def test_it_stops_when_a_rejection_is_likely_enough() -> None:
    stage = context(written([[1], [2]]))
    controller = Calibrated(h=0.5, buckets=10)
    state = controller.start(stage)
    assert controller.budget(5, stage, state).tolist() == [5, 5]
    # Nothing seen: a token is believed to be accepted as often as the middle of its bucket says.
    assert controller.stop(torch.tensor([0.81, 0.62]), 0, stage, state).tolist() == [False, False]  # .85, .65
    assert controller.stop(torch.tensor([0.62, 0.81]), 1, stage, state).tolist() == [False, False]  # .5525
    assert controller.stop(torch.tensor([0.99, 0.81]), 2, stage, state).tolist() == [False, True]  # .525, .47
    controller.budget(5, stage, state)
    assert controller.stop(torch.tensor([0.99, 0.81]), 0, stage, state).tolist() == [False, False]  # a new round


def test_only_tokens_up_to_the_first_rejection_are_counted() -> None:
    stage = context(written([[1], [2], [3]]))
    controller = Calibrated(buckets=10, decay=1.0)
    state = controller.start(stage)
    controller.budget(3, stage, state)
    for step, said in enumerate((0.95, 0.55, 0.15)):
        controller.stop(torch.tensor([said] * 3), step, stage, state)
    controller.observe(outcome([3, 3, 2], [1, 3, 2]), stage, state)
    assert state.tested[:, [9, 5, 1]].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]
    assert state.accepted[:, [9, 5, 1]].tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert state.tested.sum() == 7
    # Two tokens of the prior at .55 and one rejection.
    assert controller.acceptance(state, np.array([5, 5, 5])) == pytest.approx([1.1 / 3, 2.1 / 3, 2.1 / 3])


def test_counts_fade() -> None:
    stage = context(written([[1]]))
    controller = Calibrated(buckets=2, decay=0.5)
    state = controller.start(stage)
    for _ in range(2):
        controller.budget(1, stage, state)
        controller.stop(torch.tensor([0.9]), 0, stage, state)
        controller.observe(outcome([1], [1]), stage, state)
    assert state.tested.tolist() == [[0, 1.5]]


def test_an_overconfident_drafter_is_found_out() -> None:
    drawn = np.random.RandomState(3)
    sure = drawn.beta(2, 1, (600, 10))
    uniform = sure**2
    for c, least in ((0.05, 1.0), (0.2, 1.0), (0.5, 0.83)):
        best = best_fixed(uniform, c, 10)
        assert speed(Calibrated(), uniform, c, 10, sure) >= least * best
        assert speed(Calibrated(), uniform, c, 10, sure) > 1.05 * speed(Unsure(), uniform, c, 10, sure)


@pytest.mark.parametrize(("c", "least"), [(0.05, 0.99), (0.2, 0.95), (0.5, 0.79)])
def test_it_is_not_far_from_the_best_fixed_length(c: float, least: float) -> None:
    for alphas in ((0.9, 0.3, 0.8, 0.1), (0.9,), (0.2,)):
        uniform = switching(alphas, 600 // len(alphas), 10)
        assert speed(Calibrated(), uniform, c, 10) >= least * best_fixed(uniform, c, 10)


@pytest.mark.parametrize(
    ("part", "said"), [({"h": 0}, "h must lie in"), ({"decay": 2}, "decay must lie in"), ({"buckets": 0}, "above 0")]
)
def test_values_out_of_range_are_refused(part: dict[str, float], said: str) -> None:
    with pytest.raises(SpecError, match=f"calibrated: .*{said}"):
        Calibrated(**part)  # type: ignore[arg-type]
