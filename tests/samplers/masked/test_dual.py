"""`dual`: the block alone is computed at every step, everything else once a block."""

from __future__ import annotations

from typing import Any

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from tests.samplers.cache_checks import (
    ALL,
    FIRST,
    SECOND,
    agree,
    both,
    check_by_hand,
)
from tests.samplers.toys import FAMILIES, fill, prompts, same, toy

ASKED: dict[tuple[str, str], list[range]] = {
    ("llada", "dual"): [ALL, *[range(5, 9)] * 3, ALL, *[range(9, 13)] * 3, ALL, range(13, 15)],
    # Steps 0, 3, 6 and 9 of the clock, and the steps 0, 4 and 8 that enter a block.
    ("llada", "dual:refresh=3"): [
        ALL, FIRST, FIRST, ALL,
        ALL, SECOND, ALL, SECOND,
        ALL, ALL,
    ],
    ("dream", "dual"): [
        ALL, range(4, 9), range(4, 9), range(4, 9),
        ALL, range(8, 13), range(8, 13), range(8, 13),
        ALL, range(13, 15),
    ],
    ("dream", "dual:refresh=2"): [
        ALL, range(4, 9), ALL, range(5, 9),
        ALL, range(8, 13), ALL, range(9, 13),
        ALL, range(13, 15),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("family", "cache"), ASKED)
def test_the_positions_that_are_queried_by_hand(family: str, cache: str) -> None:
    check_by_hand(family, cache, ASKED[family, cache])


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9, "top_p": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_refreshing_at_every_step_is_no_cache(family: str, distribution: dict[str, Any]) -> None:
    for select in ("threshold:tau=0.4", "origin:steps=30"):
        assert agree(*both(family, f"{select}@dual:refresh=1", f"{select}@none", **distribution))
    assert [registry.resolve(f"sequential@{cache}").exact for cache in ("dual:refresh=1", "dual")] == [
        "greedy",
        "relaxed",
    ]


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize("cache", ["dual", "dual:refresh=3"])
@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
@pytest.mark.covers(2)
def test_a_block_causal_model_loses_nothing(family: str, cache: str, distribution: dict[str, Any]) -> None:
    for select in ("threshold:tau=0.4", "sequential"):
        cached, plain = both(family, f"{select}@{cache}", f"{select}@none", **distribution)
        assert agree(cached, plain)
        assert sum(cached.tokens_fed) < sum(plain.tokens_fed)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("select", ["sequential", "factor", "threshold:tau=0.4"])
def test_on_one_block_dual_is_prefix(family: str, select: str) -> None:
    dual, prefix = both(family, f"{select}@dual", f"{select}@prefix", block_length=6, new=6)
    assert all(same(dual, row, prefix, row) for row in range(3))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_blocks_of_one_are_no_cache(family: str) -> None:
    """Every forward enters a block, so every forward is full."""
    dual, none = both(family, "sequential@dual", "sequential@none", block_length=1)
    assert all(same(dual, row, none, row) for row in range(3))


def test_a_short_row_is_not_padded_to_a_long_one_for_its_own_count() -> None:
    got = fill(toy(sharp=1.2), "sequential@dual", prompts((30, 3)), (6, 6))
    assert [[len(asked) for asked in got.trace.fed[row]] for row in range(2)] == [
        [36, 4, 4, 4, 36, 2],
        [9, 4, 4, 4, 9, 2],
    ]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [("refresh=-1", "dual: refresh must be at least 0, got -1")],
)
def test_bad_parameters(parameters: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        registry.resolve(f"sequential@dual:{parameters}")
