"""`spacing`: removes positions near a better one from a select's choice; by hand, and against the naive rule."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch

from tests.reference import naive_selects as naive
from tests.samplers.eight_tokens import MASK, steps_of
from tests.samplers.heldout_answers import answered
from tests.samplers.parity import FAMILIES, agree, agree_recorded, block_lengths
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import request, run, table

# Probabilities .95 .60 .91 .30 .99 .85 .901 .45
STEPS = {
    "threshold:tau=0.9+spacing:gap=2": [0, 2, 0, 4, 0, 1, 0, 3],  # .99 .95 .91 .901 are no neighbours
    "threshold:tau=0.8+spacing:gap=2": [0, 2, 0, 4, 0, 1, 0, 3],  # .85 is one of .99
    "threshold:tau=0.9+spacing:gap=3": [0, 3, 1, 5, 0, 2, 1, 4],  # .99 .95 | .91 .901 | then one per forward
    "threshold:tau=0.9+spacing": [0, 3, 1, 5, 0, 2, 1, 4],  # at first 8 open positions ask for a distance of 4, then 3
    "threshold:tau=0.9+spacing:gap=8": [1, 5, 2, 7, 0, 4, 3, 6],
    "threshold:tau=0.9+spacing:gap=1": [0, 2, 0, 4, 0, 1, 0, 3],
}


test_eight_tokens_by_hand = commits_at(STEPS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tau", "gap", "base"), [(0.3, 2, 2), (0.2, None, 2), (0.2, None, 4), (0.1, 5, 2)])
def test_it_is_the_naive_rule(family: str, tau: float, gap: int | None, base: int) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    widths, name = block_lengths(family), "none" if gap is None else gap

    def rule() -> Any:
        return naive.spacing(naive.threshold(tau), next(widths), gap, base)

    agree(f"threshold:tau={tau}+spacing:gap={name},base={base}", rule, family=family, **length)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_it_is_the_naive_rule_on_recorded_checkpoints(name: str) -> None:
    widths = cycle([16, 16, 9])  # the last row is shorter than a block
    make = lambda: naive.spacing(naive.threshold(0.3), next(widths), None)  # noqa: E731
    agree_recorded(name, "threshold:tau=0.3+spacing", make, block_length=16)


test_bad_parameters = refused_specs(
    [("gap=0", "gap must be at least 1, got 0"), ("base=1", "base must be at least 2, got 1")],
    before="threshold+spacing:",
)


def test_equal_scores_go_to_the_lowest_position() -> None:
    flat = table(torch.tensor([[0.25, 0.25, 0.25, 0.25, 0, 0, 0]] * 4))
    got = run(flat, "threshold:tau=0.25+spacing:gap=2", request([[MASK] * 4], [0], block_length=4))
    assert got.trace.commit_step[0].tolist() == [0, 1, 0, 1]


def test_falling_scores_leave_one_after_the_other_and_a_gap_is_rounded_down_twice() -> None:
    falling = torch.zeros(8, 7)
    falling[:, 0] = torch.linspace(0.9, 0.55, 8)
    falling[:, 1] = 1 - falling[:, 0]
    got = run(table(falling), "threshold:tau=0.5+spacing:gap=3", request([[MASK] * 8], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    # Six of seven are open: 7 / 2 is 3, and 3 * 6 / 7 is 2.
    assert steps_of("threshold:tau=0.9+spacing", block_length=7, row=[0, *[MASK] * 6]) == [-1, 2, 0, 3, 0, 1, 0]


def test_no_two_of_a_step_are_near_each_other_and_more_answers_are_right() -> None:
    right, result = answered("tiny-dream", "arithmetic", "threshold:tau=0.5+spacing:gap=3", 10)
    for when in result.trace.commit_step:
        for step in range(when.max() + 1):
            at = torch.from_numpy(when == step).nonzero()[:, 0]
            assert (at.diff() >= 3).all()
    plain, _ = answered("tiny-dream", "arithmetic", "threshold:tau=0.5", 10)
    assert right > plain
