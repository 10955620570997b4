"""The positions that the prefix cache computes, where positions before the block are among them."""

from __future__ import annotations

import pytest

from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.toys import fill, prompts, same, toy


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


def test_without_them_a_shifted_family_asks_the_one_before_only_while_it_needs_it() -> None:
    got = fill(toy("dream"), "leftmost+sequential@prefix", prompts((5,)), 4)
    assert got.trace.fed[0] == (range(9), range(5, 9), range(5, 9), range(5, 9))


def test_asking_the_whole_prompt_again_is_no_cache() -> None:
    one = fill(toy("dream", sharp=1.2), "threshold:tau=0.4@prefix:before=99", prompts((5, 3)), 8)
    other = fill(toy("dream", sharp=1.2), "threshold:tau=0.4", prompts((5, 3)), 8)
    assert all(same(one, row, other, row) for row in range(2))


def test_a_number_below_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="before must be at least 0, got -1"):
        resolve("sequential@prefix:before=-1")
