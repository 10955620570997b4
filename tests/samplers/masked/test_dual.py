"""`dual`: only the block is computed at every step, everything else once per block."""

from __future__ import annotations

import pytest

from tests.samplers.cache_checks import (
    ALL,
    FIRST,
    SECOND,
    both,
    check_by_hand,
    loses_nothing_if_block_causal,
    refreshed_is_no_cache,
    rows_refresh_for_themselves,
)
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import fill, prompts, same, toy

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
def test_the_positions_that_are_computed_by_hand(family: str, cache: str) -> None:
    check_by_hand(family, cache, ASKED[family, cache])


test_rows_of_a_batch_refresh_for_themselves = rows_refresh_for_themselves("dual")


test_refreshing_at_every_step_is_no_cache = refreshed_is_no_cache("dual")


test_a_block_causal_model_loses_nothing = loses_nothing_if_block_causal("dual", "dual:refresh=3")


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("select", ["sequential", "factor", "threshold:tau=0.4"])
@pytest.mark.covers(1)
def test_on_one_block_dual_is_prefix(family: str, select: str) -> None:
    dual, prefix = both(family, f"{select}@dual", f"{select}@prefix", block_length=6, new=6)
    assert all(same(dual, row, prefix, row) for row in range(3))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_blocks_of_one_are_no_cache(family: str) -> None:
    """Blocks of one token: every forward enters a block, so every forward is full."""
    dual, none = both(family, "sequential@dual", "sequential@none", block_length=1)
    assert all(same(dual, row, none, row) for row in range(3))


def test_a_short_row_is_not_padded_to_a_long_one_for_its_own_count() -> None:
    got = fill(toy(sharp=1.2), "sequential@dual", prompts((30, 3)), (6, 6))
    assert [[len(asked) for asked in got.trace.fed[row]] for row in range(2)] == [
        [36, 4, 4, 4, 36, 2],
        [9, 4, 4, 4, 9, 2],
    ]


test_bad_parameters = refused_specs(
    [("refresh=-1", "dual: refresh must be at least 0, got -1")], before="sequential@dual:"
)
