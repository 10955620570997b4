"""`hierarchy` by hand, compared with the naive rule; ties and special cases."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_selects as naive
from tests.samplers.eight_tokens import LAWS, MASK, steps_of
from tests.samplers.parity import FAMILIES, agree
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Probabilities .95 .60 .91 .30 .99 .85 .901 .45
STEPS = {
    "hierarchy": [0, 1, 0, 2, 0, 1, 0, 1],  # four above .9; then runs of one: .60 .85 .45 pass .4, .30 does not
    "hierarchy:high=none": [1, 3, 2, 4, 0, 2, 1, 2],  # .99; .95 and .901; .91 .85 .45; .60; .30
    "hierarchy:high=none,low=0": [1, 3, 2, 3, 0, 2, 1, 2],
    "hierarchy:low=1": [0, 2, 0, 4, 0, 1, 0, 3],
    "hierarchy:low=1,high=none": [1, 5, 2, 7, 0, 4, 3, 6],
    "hierarchy:low=0,high=0": [0] * 8,
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_given_tokens_divide_a_block_and_blocks_divide_the_canvas() -> None:
    row = [MASK, MASK, MASK, 0, 0, MASK, MASK, MASK]
    # .95 and .901 lead their runs; what is left are the run .60 .91 and the runs .85 and .45; then .60.
    assert steps_of("hierarchy:high=none", row=row) == [0, 2, 1, -1, -1, 1, 0, 1]
    # .95 leads the first block; then .91 its last three; then .60, and .30 is too low. .99 leads the second; then .901.
    assert steps_of("hierarchy:high=none", block_length=4) == [0, 2, 1, 3, 4, 6, 5, 6]


def test_of_equal_best_positions_the_lowest_is_taken_or_all_as_published() -> None:
    distributions = LAWS.clone()
    for place in (0, 2, 4, 6):
        distributions[place] = distributions[2]  # .91 at 0, 2, 4 and 6
    asked = request([[MASK, MASK, MASK, 0, MASK, MASK, MASK, MASK]], [0], block_length=8)
    lowest = run(table(distributions), "hierarchy:high=0.95", asked)
    every = run(table(distributions), "hierarchy:high=0.95,reference=true", asked)
    assert (lowest.trace.commit_step[0] == 0).nonzero()[0].tolist() == [0, 4]
    assert (every.trace.commit_step[0] == 0).nonzero()[0].tolist() == [0, 2, 4, 6]


def test_both_bounds_are_strict() -> None:
    distributions = torch.zeros(4, 7)
    distributions[:, 0] = torch.tensor([0.5, 0.9, 0.5, 0.9])
    distributions[:, 1] = 1 - distributions[:, 0]  # equal logits are a probability of exactly one half
    steps = {
        "high=0.5,low=1": [1, 0, 2, 0],
        "high=0.49,low=1": [0, 0, 0, 0],
        "high=none,low=0.5": [2, 0, 3, 1],
        "high=none,low=0.49": [1, 0, 2, 1],
    }
    for bounds, expected in steps.items():
        got = run(table(distributions), f"hierarchy:{bounds}", request([[MASK] * 4], [0], block_length=4))
        assert got.trace.commit_step[0].tolist() == expected, bounds


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("high", "low"), [(0.9, 0.4), (0.5, 0.2), (None, 0.0), (0.3, 0.6)])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(family: str, high: float | None, low: float) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    name = "none" if high is None else high
    agree(f"hierarchy:high={name},low={low}", lambda: naive.hierarchy(high, low), family=family, **length)


def test_with_one_run_and_no_high_bound_it_is_sequential() -> None:
    model, given = toy("dream", sharp=1.2), prompts((4, 7, 2))
    one, other = (fill(model, spec, given, (9, 5, 11)) for spec in ("sequential", "hierarchy:low=1,high=none"))
    assert all(same(one, row, other, row) for row in range(3))


test_bad_parameters = refused_specs(
    [
        ("hierarchy:low=none", "hierarchy:low must be a number, got 'none'"),
    ]
)
