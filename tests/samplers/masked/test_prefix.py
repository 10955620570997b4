"""`prefix`: the block and everything after it is computed at every step, positions before it once per block."""

from __future__ import annotations

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from tests.samplers.cache_checks import (
    ALL,
    check_by_hand,
    loses_nothing_if_block_causal,
    refreshed_is_no_cache,
    rows_refresh_for_themselves,
)
from tests.samplers.toys import fill, prompts, same, toy

ASKED: dict[tuple[str, str], list[range]] = {
    ("llada", "prefix"): [ALL, *[range(5, 15)] * 3, ALL, *[range(9, 15)] * 3, ALL, range(13, 15)],
    ("llada", "prefix:refresh=1"): [ALL] * 10,
    # A block's first token is predicted one to the left of the block, which is asked as long as that token is open.
    ("dream", "prefix"): [
        ALL, range(4, 15), range(4, 15), range(4, 15),
        ALL, range(8, 15), range(8, 15), range(9, 15),
        ALL, range(13, 15),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("family", "cache"), ASKED)
def test_the_positions_that_are_computed_by_hand(family: str, cache: str) -> None:
    check_by_hand(family, cache, ASKED[family, cache])


@pytest.mark.parametrize(
    ("family", "before", "starts"),
    [
        ("llada", 0, [0, 5, 5, 5, 0, 9, 9, 9]),
        ("llada", 2, [0, 3, 3, 3, 0, 7, 7, 7]),
        ("dream", 1, [0, 4, 4, 4, 0, 8, 8, 8]),
        ("dream", 99, [0] * 8),
    ],
)
def test_positions_before_the_block_are_asked_at_every_step(family: str, before: int, starts: list[int]) -> None:
    got = fill(toy(family), f"sequential@prefix:before={before}", prompts((5,)), 8)
    assert got.trace.fed[0] == tuple(range(start, 13) for start in starts)


test_rows_of_a_batch_refresh_for_themselves = rows_refresh_for_themselves("prefix")


def test_without_them_a_shifted_family_asks_the_one_before_only_while_it_needs_it() -> None:
    got = fill(toy("dream"), "leftmost+sequential@prefix", prompts((5,)), 4)
    assert got.trace.fed[0] == (range(9), range(5, 9), range(5, 9), range(5, 9))


def test_asking_the_whole_prompt_again_is_no_cache() -> None:
    one = fill(toy("dream", sharp=1.2), "threshold:tau=0.4@prefix:before=99", prompts((5, 3)), 8)
    other = fill(toy("dream", sharp=1.2), "threshold:tau=0.4", prompts((5, 3)), 8)
    assert all(same(one, row, other, row) for row in range(2))


def test_a_number_below_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="before must be at least 0, got -1"):
        registry.resolve("sequential@prefix:before=-1")


test_refreshing_at_every_step_is_no_cache = refreshed_is_no_cache("prefix")


test_a_block_causal_model_loses_nothing = loses_nothing_if_block_causal("prefix")
