"""`remdm`: once most of a block is committed, its least confident tokens are decoded again, some times."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_revise as naive
from tests.samplers.revise_checks import LENGTHS, NEW, as_the_select_alone, compare
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import BLOCK, fill, prompts, table, toy


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_it_is_the_naive_rule(family: str) -> None:
    spec, numbers = "remdm:at=0.75,rounds=3,tokens=2+threshold:tau=0.4", {"at": 0.75, "rounds": 3, "count": 2}
    for seed in range(3):
        got, _ = compare(spec, naive.remdm, family, BLOCK, seed, tau=0.4, **numbers)
        plain = fill(toy(family, seed=seed, sharp=1.2), "threshold:tau=0.4", prompts(LENGTHS, seed=seed), NEW)
        assert all(more > less for more, less in zip(got.nfe, plain.nfe, strict=True))


@pytest.mark.parametrize(("at", "size", "first"), [(0.6, 25, 15), (0.3, 50, 15), (0.875, 8, 7), (0.61, 25, 16)])
def test_it_begins_at_the_share_and_not_one_token_later(at: float, size: int, first: int) -> None:
    """All that is committed at once is opened again, so that the forwards tell how many tokens that were."""
    got = fill(toy(), f"remdm:at={at},rounds=1,tokens={size}+sequential", prompts((3,)), size, block_length=size)
    assert got.nfe[0] == size + first


def test_of_equal_scores_the_first_position_is_opened_again() -> None:
    """Three of four are committed from the left, and then the first of them once more."""
    halves = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(5, 5)
    got = fill(table(halves), "remdm:at=0.75,rounds=1,tokens=1+sequential", [[0]], 4, block_length=4)
    assert got.trace.commit_step[0, 1:5].tolist() == [3, 1, 2, 4]


test_no_round_is_the_select_alone = as_the_select_alone(("threshold:tau=0.4+remdm:rounds=0", "threshold:tau=0.4"))


test_bad_parameters = refused_specs(
    [
        ("at=0", "at must be above 0 and at most 1, got 0.0"),
        ("rounds=-1", "rounds must be at least 0 and tokens at least 1, got -1 and 1"),
        ("tokens=0", "rounds must be at least 0 and tokens at least 1, got 4 and 0"),
    ],
    before="remdm:",
)
