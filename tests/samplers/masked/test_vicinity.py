"""`vicinity`: after the warm-up, the block and a few positions around it are computed at every step."""

from __future__ import annotations

from typing import Any

import pytest

from pardec.samplers import registry
from tests.reference import naive_caches as naive
from tests.samplers.cache_checks import (
    NEW,
    agree,
    both,
    check_plain,
)
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import FAMILIES, fill, prompts, toy


def test_the_vicinity_of_the_block_is_computed_after_the_warmup() -> None:
    spec = "sequential@vicinity:before=2,after=1,warmup=2"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 10)
    first, second, last = range(3, 10), range(7, 14), range(11, 15)
    assert got.trace.fed[0] == (
        range(15), range(15), first, first,
        range(15), second, second, second,
        range(15), last,
    )  # fmt: skip


def test_the_published_vicinity_computes_everything_once_more_after_the_warmup() -> None:
    spec = "sequential@vicinity:before=2,after=1,warmup=2,reference=true"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 8)
    assert [len(positions) for positions in got.trace.fed[0]] == [13, 13, 13, 7, 13, 6, 6, 6]
    spec = "sequential@vicinity:before=2,after=1,warmup=0,reference=true"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 8)
    assert [len(positions) for positions in got.trace.fed[0]] == [13, 7, 7, 7, 13, 6, 6, 6]
    # The warm-up ends within the second block, whose refresh then follows the first window.
    spec = "sequential@vicinity:before=2,after=1,warmup=5,reference=true"
    got = fill(toy("llada", sharp=1.2), spec, prompts((5,)), 8)
    assert [len(positions) for positions in got.trace.fed[0]] == [13, 13, 13, 13, 13, 13, 6, 13]


RULES = {
    "vicinity:before=3,after=2,warmup=2": naive.vicinity(3, 2, 2, 0),
    "vicinity:before=1,after=0,warmup=0,refresh=3": naive.vicinity(1, 0, 0, 3),
}


@pytest.mark.parametrize("cache", RULES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_it_is_its_plain_version(family: str, cache: str) -> None:
    check_plain(family, cache, RULES[cache])


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9, "top_p": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_refreshing_at_every_step_is_no_cache(family: str, distribution: dict[str, Any]) -> None:
    for select in ("threshold:tau=0.4", "origin:steps=30"):
        assert agree(
            *both(family, f"{select}@vicinity:before=1,after=1,warmup=0,refresh=1", f"{select}@none", **distribution)
        )
    assert [
        registry.resolve(f"sequential@{cache}").exact
        for cache in ("vicinity:before=1,after=1,warmup=0,refresh=1", "vicinity")
    ] == ["greedy", "relaxed"]


@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
def test_a_block_causal_model_loses_nothing(family: str) -> None:
    model, given = toy(family, seed=1, sharp=1.2), prompts((30, 2, 9))
    spec = "threshold:tau=0.4@{}"
    assert agree(fill(model, spec.format("vicinity"), given, NEW), fill(model, spec.format("none"), given, NEW))


test_bad_parameters = refused_specs(
    [("before=-1", "before must be at least 0, got -1"), ("warmup=-2", "warmup must be at least 0, got -2")],
    before="sequential@vicinity:",
)
