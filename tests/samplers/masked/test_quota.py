"""`quota`: every confident position, and if they are fewer than the step's even share, the best up to that share."""

from __future__ import annotations

import torch

from tests.samplers.eight_tokens import MASK, steps_of
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import request, run, table

# Ranked .99 .95 .91 .901 .85 .60 .45 .30, at 4 0 2 6 5 1 7 3
STEPS = {
    "quota:tau=0.9": [0, 2, 0, 4, 0, 1, 0, 3],
    "quota:tau=none,steps=4": [0, 2, 1, 3, 0, 2, 1, 3],  # two each
    "quota:tau=none,steps=3": [0, 1, 0, 2, 0, 1, 1, 2],  # 3, 3, 2
    "quota:tau=none,least=3": [0, 1, 0, 2, 0, 1, 1, 2],
    "quota:tau=0.9,steps=2": [0, 1, 0, 1, 0, 1, 0, 1],  # four are sure, and four is the share
    "quota:tau=0.8,steps=4": [0, 1, 0, 2, 0, 0, 0, 1],  # five are sure; then two are owed, .60 and .45
    "quota:tau=none": [1, 5, 2, 7, 0, 4, 3, 6],
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_a_share_is_of_all_positions_of_a_block_given_ones_too() -> None:
    """Four of eight at the first of two steps, though six are open; each of two blocks of four has its own steps."""
    row = [MASK, MASK, MASK, 0, 0, MASK, MASK, MASK]
    assert steps_of("quota:tau=none,steps=2", row=row) == [0, 1, 0, -1, -1, 0, 0, 1]
    assert steps_of("quota:tau=none,steps=2", block_length=4) == [0, 1, 0, 1, 2, 3, 2, 3]
    assert steps_of("quota:tau=none,steps=3", block_length=4) == [0, 1, 0, 2, 3, 4, 3, 5]  # 2, 1, 1, and again


def test_a_score_of_exactly_tau_is_not_sure() -> None:
    distributions = torch.zeros(3, 7)
    distributions[:, :4] = 0.25
    query = request([[6] * 3], [0], block_length=3)
    assert run(table(distributions), "quota:tau=0.25", query).nfe == (3,)
    assert run(table(distributions), "quota:tau=0.249", query).nfe == (1,)


def test_a_row_without_confident_positions_does_not_hold_back_another() -> None:
    distributions = torch.full((8, 7), 0.01)
    distributions[:4, 0], distributions[4:, 0] = 0.95, 0.4
    asked = request([[6] * 4, [0] * 4 + [6] * 4], [0, 4], block_length=4)
    assert run(table(distributions), "quota:tau=0.9", asked).nfe == (1, 4)


test_bad_parameters = refused_specs(
    [
        ("tau=1.5", "tau must be at most 1, got 1.5"),
        ("steps=0", "steps must be at least 1, got 0"),
        ("least=0", "least must be at least 1, got 0"),
    ],
    before="quota:",
)
