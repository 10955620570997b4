"""`contiguous`: commits the run of confident positions from the left, at least the first open one."""

from __future__ import annotations

import pytest
import torch

from tests.samplers.eight_tokens import MASK, steps_of
from tests.samplers.spec_checks import commits_at
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Probabilities .95 .60 .91 .30 .99 .85 .901 .45
STEPS = {
    "contiguous:tau=0.5": [0, 0, 0, 1, 2, 2, 2, 3],  # .95 .60 .91 | .30 alone | .99 .85 .901 | .45 alone
    "contiguous:tau=0.4": [0, 0, 0, 1, 2, 2, 2, 2],
    "contiguous:tau=0.9": list(range(8)),
    "contiguous:tau=1": list(range(8)),
    "contiguous:tau=0": [0] * 8,
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_given_tokens_do_not_end_a_run_and_a_block_does() -> None:
    row = [0, MASK, 1, MASK, MASK, 2, 0, MASK]
    assert steps_of("contiguous:tau=0.5", row=row) == [-1, 0, -1, 1, 2, -1, -1, 3]  # .60 | .30 | .99 | .45
    assert steps_of("contiguous:tau=0.4", row=row) == [-1, 0, -1, 1, 2, -1, -1, 2]  # .60 | .30 | .99 .45
    assert steps_of("contiguous:tau=0.2", block_length=4) == [0] * 4 + [1] * 4


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
def test_at_one_it_is_one_token_from_the_left(family: str) -> None:
    model, given = toy(family, sharp=1.2), prompts((4, 7, 2))
    one, other = (fill(model, spec, given, (9, 5, 11)) for spec in ("contiguous:tau=1", "leftmost+sequential"))
    assert all(same(one, row, other, row) for row in range(3))


def test_a_score_of_exactly_tau_goes_on() -> None:
    quarters = table(torch.tensor([[0.25, 0.25, 0.25, 0.25, 0, 0, 0]] * 3))
    for tau, forwards in ((0.25, 1), (0.2501, 3)):
        assert run(quarters, f"contiguous:tau={tau}", request([[MASK] * 3], [0], block_length=3)).nfe == (forwards,)
