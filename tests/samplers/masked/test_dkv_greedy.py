"""`dkv_greedy`: computes the last and next commits, and masks near them; by hand and by a naive version."""

from __future__ import annotations

import numpy as np
import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from tests.reference import naive_caches as naive
from tests.samplers.cache_checks import (
    ORDER,
    WHOLE,
    Descending,
    agree,
    both,
    in_order,
)
from tests.samplers.query_parity import queried
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import BLOCK, FAMILIES, fill, prompts, toy


def test_only_what_was_and_will_be_committed_is_computed() -> None:
    got = in_order("llada", "dkv_greedy:refresh=3,window=0", ORDER, steps=8, block_length=8)
    assert got == [WHOLE, (7, 9), (6, 9), WHOLE, (5, 12), (11, 12), WHOLE, (8, 10)]
    got = in_order("dream", "dkv_greedy:refresh=3,window=0", ORDER, steps=8, block_length=8)
    assert got == [WHOLE, (7, 8, 9), (5, 6, 9), WHOLE, (5, 11, 12), (10, 11, 12), WHOLE, (8, 9, 10)]


def test_the_window_takes_the_nearest_masks_in_the_order_of_commits() -> None:
    # Two a step: 7 9, 6 5, 12 11, 8 10. At the second, 6 takes 8 and 10, and 5 the nearest that are left, 11 and 12.
    got = in_order("llada", "dkv_greedy:refresh=0,window=2", ORDER, steps=4, block_length=8)
    assert got == [WHOLE, (5, 6, 7, 8, 9, 10, 11, 12), (5, 6, 8, 10, 11, 12), (8, 10, 11, 12)]
    # 9 was committed, then 6 comes: 5 on the left is as near as 7 on the right, and one is taken.
    got = in_order("llada", "dkv_greedy:refresh=0,window=1", [9, 6, 7, 5, 8, 10, 11, 12], steps=8, block_length=8)
    assert got[1] == (5, 6, 9)
    # 6 and 7 were committed, then 8 and 10 come: 8 takes 9, and 10 the 11. Were 10 first, it would take 9, and 8 the 5.
    got = in_order("llada", "dkv_greedy:refresh=0,window=1", [6, 7, 8, 10, 5, 9, 11, 12], steps=4, block_length=8)
    assert got[1] == (6, 7, 8, 9, 10, 11)


def test_the_window_looks_beyond_the_block() -> None:
    got = in_order("llada", "dkv_greedy:refresh=0,window=1", [7, 6, 5, 8, 9, 10, 11, 12], steps=8)
    assert got[3] == (5, 8, 9)  # 8 ends the first block of four; 9 is open in the second


@pytest.mark.parametrize(("refresh", "window"), [(2, 4), (0, 0), (3, 1), (0, 2), (1, 4)])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_its_plain_version(family: str, refresh: int, window: int) -> None:
    model = toy(family, seed=5, sharp=1.2)
    drawn = np.random.RandomState(window)
    for length, new, count in ((5, 12, 1), (4, 12, 2), (8, 8, 4)):
        (prompt,) = prompts((length,), seed=length)
        order = (length + drawn.permutation(new)).tolist()
        size = BLOCK
        if FAMILIES[family][1] == "block-causal" and length % BLOCK:
            continue  # the first block then has fewer tokens, and the schedule another share of them
        rule = naive.dkv_greedy(refresh, window)
        tokens, when, fed = naive.decode(model, prompt, new, rule, size=size, count=count, order=order)
        for spec in ("random+fixed", "fixed:order=random"):
            spec += f"{',' if ':' in spec else ':'}steps={new // count}"
            source = Descending(order)
            got = fill(model, f"{spec}@dkv_greedy:refresh={refresh},window={window}", [prompt], new, source=source)
            assert queried(got) == fed
            assert got.tokens[0].tolist() == tokens
            assert dict(enumerate(got.trace.commit_step[0].tolist()[length:], length)) == dict(sorted(when.items()))


@pytest.mark.parametrize("family", FAMILIES)
def test_refreshing_at_every_step_is_no_cache(family: str) -> None:
    for select, cache in (("random+fixed:steps=9", "refresh=1,window=3"), ("fixed:steps=9,order=random", "refresh=1")):
        assert agree(*both(family, f"{select}@dkv_greedy:{cache}", f"{select}@none", temperature=0.9))


test_bad_parameters = refused_specs(
    [("window=-1", "window must be at least 0, got -1"), ("refresh=-1", "dkv_greedy: refresh must be at least 0")],
    before="random+fixed@dkv_greedy:",
)


@pytest.mark.parametrize(
    ("select", "says"),
    [
        ("sequential", "which sequential decides after it"),
        ("fixed", "which fixed decides after it"),
        ("random+sequential", ""),
    ],
)
def test_an_order_that_is_not_known_before_a_forward_is_refused(select: str, says: str) -> None:
    with pytest.raises(SpecError, match=f"dkv_greedy must know .*{says}"):
        registry.resolve(f"{select}@dkv_greedy")
