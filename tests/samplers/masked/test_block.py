"""`block`: block-causal models keep the K/V of final tokens only; a finished block is computed with the next."""

from __future__ import annotations

from typing import Any

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.masked.loop import decode
from tests.reference import naive_caches as naive
from tests.samplers.cache_checks import (
    NEW,
    agree,
    check_plain,
)
from tests.samplers.toys import FAMILIES, MASK, fill, prompts, request, toy


@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
def test_it_computes_a_finished_block_once_more_with_the_next(family: str) -> None:
    got = fill(toy(family, sharp=1.2), "leftmost+sequential@block", prompts((6,)), 7)
    # A grid of four from position 0: the prompt ends within the second block, the last one has a single token.
    expected = [range(8), range(4, 8), range(4, 12), range(8, 12), range(8, 12), range(8, 12), range(8, 13)]
    if FAMILIES[family][0]:
        expected[2] = range(4, 12)
    assert list(got.trace.fed[0]) == expected


def test_blocks_of_a_template_that_are_passed_over_are_computed_with_the_next() -> None:
    m = MASK
    canvas = [1, 2, m, m, 5, 6, 7, 8, 9, 1, 2, 3, 4, m]
    model = toy("sdar", sharp=1.2)
    results = []
    for cache in ("block", "none"):
        *_, last = decode(model, registry.resolve(f"sequential@{cache}"), request([canvas], (2,), absolute=True))
        assert isinstance(last, Finished)
        results.append(last)
    assert list(results[0].trace.fed[0]) == [range(4), range(4), range(14)]
    assert agree(*results)


@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
def test_it_is_its_plain_version(family: str) -> None:
    check_plain(family, "block", naive.block())


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize(
    "select", ["threshold:tau=0.4", "sequential", "random+fixed:steps=9", "wino+threshold:tau=0.4"]
)
@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
@pytest.mark.covers(2)
def test_nothing_is_lost_and_least_is_computed(family: str, select: str, distribution: dict[str, Any]) -> None:
    model, given = toy(family, seed=1, sharp=1.2), prompts((30, 2, 9))
    results = {
        cache: fill(model, f"{select}@{cache}", given, NEW, **distribution) for cache in ("none", "dual", "block")
    }
    assert agree(results["block"], results["none"])
    assert agree(results["dual"], results["none"])
    fed = [sum(results[cache].tokens_fed) for cache in ("block", "dual", "none")]
    assert fed[0] < fed[1] < fed[2]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_it_is_refused_where_blocks_see_what_comes_after_them(family: str) -> None:
    with pytest.raises(SpecError, match="final only in block-causal models"):
        fill(toy(family), "sequential@block", prompts((3,)), 4)
