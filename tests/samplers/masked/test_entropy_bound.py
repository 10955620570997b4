"""`entropy_bound` by hand, compared with the naive rule; special cases."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers import registry
from tests.reference import naive_selects as naive
from tests.samplers.eight_tokens import LAWS, MASK
from tests.samplers.parity import FAMILIES, agree
from tests.samplers.spec_checks import commits_at
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Entropies in order: .99 .067, .95 .254, .91 .401, .901 .432, .85 .588, .60 1.113, .45 1.292, .30 1.380 nats.
# Sum without the largest: 0, .067, .321, .722, 1.154, ...
STEPS = {
    "entropy_bound": [0, 4, 1, 6, 0, 3, 2, 5],
    "entropy_bound:gamma=0": [1, 5, 2, 7, 0, 4, 3, 6],
    "entropy_bound:gamma=0.4": [0, 3, 0, 5, 0, 2, 1, 4],
    "entropy_bound:gamma=0.8": [0, 1, 0, 3, 0, 1, 0, 2],  # then .588 | 1.113 | 1.292: .588 and 1.701
    "entropy_bound:gamma=100": [0] * 8,
    "confidence+entropy_bound:gamma=0.8": [0, 1, 0, 3, 0, 1, 0, 2],  # the same order here
    # From the left, without the largest so far: 0 .254 .655, and 1.768 is too much; 0 .067 .655 | 1.087; 0 .432.
    "leftmost+entropy_bound:gamma=0.7": [0, 0, 0, 1, 1, 1, 2, 2],
    # With the largest: .067 .321 | .722; then always one.
    "entropy_bound:gamma=0.4,whole=true": [0, 4, 1, 6, 0, 3, 2, 5],
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_any_order_is_allowed_and_the_largest_is_found_along_it() -> None:
    """In random order the first position costs nothing, and of the first two the one with the larger entropy."""
    drawn = run(table(LAWS), "random+fixed", request([[MASK] * 8], [0], block_length=8)).trace.commit_step[0].argsort()
    entropy = dict(zip((4, 0, 2, 6, 5, 1, 7, 3), (0.067, 0.254, 0.401, 0.432, 0.588, 1.113, 1.292, 1.380), strict=True))
    first, second = (entropy[int(place)] for place in drawn[:2])
    for gamma, count in ((min(first, second) + 0.01, 2), (min(first, second) - 0.01, 1)):
        got = run(table(LAWS), f"random+entropy_bound:gamma={gamma}", request([[MASK] * 8], [0], block_length=8))
        assert (got.trace.commit_step[0] == 0).sum() >= count
        assert (got.trace.commit_step[0][drawn[1]] == 0) == (count == 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("distribution", [{}, {"top_k": 3}, {"top_p": 0.8}])
@pytest.mark.covers(2)
def test_it_is_the_naive_rule(family: str, gamma: float, distribution: dict[str, float]) -> None:
    """Entropies are those of the filtered distribution: with top_k=3 at most ln 3."""
    length = {} if "sdar" in family else {"block_length": 8}
    agree(f"entropy_bound:gamma={gamma}", lambda: naive.entropy_bound(gamma), family=family, **length, **distribution)


def test_a_whole_sum_stays_below_its_bound() -> None:
    """Two entropies of ln 2 have a sum of exactly ln 4; without the largest, ln 2 is no more than ln 2."""
    half = table(torch.tensor([[0.5, 0.5, 0, 0, 0, 0, 0]] * 2))
    for bound, forwards in (("1.3862943611198906,whole=true", 2), ("1.3863,whole=true", 1), ("0.6931472", 1)):
        got = run(half, f"entropy_bound:gamma={bound}", request([[MASK] * 2], [0], block_length=2))
        assert got.nfe == (forwards,), bound


def test_without_a_bound_it_is_one_token_a_forward_by_entropy() -> None:
    model, given = toy("dream", sharp=1.2), prompts((4, 7, 2))
    one = fill(model, "entropy+sequential", given, (9, 5, 11))
    other = fill(model, "entropy_bound:gamma=0", given, (9, 5, 11))
    assert all(same(one, row, other, row) for row in range(3))


def test_it_brings_the_entropy_of_what_is_drawn_from() -> None:
    assert str(registry.resolve("entropy_bound").spec).startswith("entropy:of=filtered+entropy_bound:gamma=0.1")
    assert str(registry.resolve("margin+entropy_bound").spec).startswith("margin:of=filtered+")
    assert str(registry.resolve("entropy:of=raw+entropy_bound").spec).startswith("entropy:of=raw+")
