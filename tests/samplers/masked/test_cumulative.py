"""`cumulative`: commits the most confident positions while the product of their scores is at least `tau`."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_selects as naive
from tests.samplers.parity import FAMILIES, agree, agree_recorded
from tests.samplers.spec_checks import commits_at
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Ranked .99 .95 .91 .901 .85 .60 .45 .30, at 4 0 2 6 5 1 7 3
STEPS = {
    "cumulative": [0, 4, 1, 6, 0, 3, 2, 5],  # .99 .94 | .91 .82 | .901 .766 | ...
    "cumulative:tau=0.7": [0, 2, 0, 4, 0, 1, 0, 3],  # .99 .94 .856 .771 .655
    "cumulative:tau=1": [1, 5, 2, 7, 0, 4, 3, 6],
    "cumulative:tau=0": [0] * 8,
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_a_product_of_just_tau_is_enough() -> None:
    halves = table(torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(4, 5))
    asked = request([[4] * 4], [0], block_length=4)
    for tau, forwards in ((0.25, 2), (0.26, 4)):
        assert run(halves, f"cumulative:tau={tau}", asked).nfe == (forwards,)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tau", [0.9, 0.3])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(family: str, tau: float) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    agree(f"cumulative:tau={tau}", lambda: naive.cumulative(tau), family=family, **length)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_it_is_the_naive_rule_on_recorded_checkpoints(name: str) -> None:
    agree_recorded(name, "cumulative:tau=0.5", lambda: naive.cumulative(0.5))


def test_at_one_it_is_sequential() -> None:
    model, given, new = toy("dream", sharp=1.2), prompts((4, 7, 2)), (9, 5, 11)
    one, other = (fill(model, spec, given, new) for spec in ("cumulative:tau=1", "sequential"))
    assert all(same(one, row, other, row) for row in range(3))
